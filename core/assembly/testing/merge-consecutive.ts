import type { Sample } from "../../sample.ts";
import type { CapturedCall } from "../captured-call.ts";

/**
 * The rule that assembly is compared with: calls in the order in which they ended, of several
 * requests with the very same prompt only the last, each joined to the row before it if its prompt
 * begins with exactly that row, else a row of its own. It takes every whole call for delivered.
 */
export function mergeConsecutive(records: readonly CapturedCall[]): Sample[] {
  const lastOfPrompt = new Map<string, CapturedCall>();
  const inOrder = [...records].sort((a, b) => a.finishedAt - b.finishedAt);
  for (const call of inOrder) {
    if (call.promptIds === null || call.responseIds === null || call.logprobs === null) continue;
    const prompt = call.promptIds.join();
    lastOfPrompt.delete(prompt);
    lastOfPrompt.set(prompt, call);
  }
  const rows: CapturedCall[][] = [];
  for (const call of lastOfPrompt.values()) {
    const row = rows.at(-1);
    if (row !== undefined && extendsCall(call, row.at(-1) as CapturedCall)) row.push(call);
    else rows.push([call]);
  }
  return rows.map(buildRow);
}

function extendsCall(call: CapturedCall, earlier: CapturedCall): boolean {
  const context = contextOf(earlier);
  const prompt = call.promptIds as Int32Array;
  return context.every((id, i) => prompt[i] === id);
}

function contextOf(call: CapturedCall): Int32Array {
  const prompt = call.promptIds as Int32Array;
  const response = call.responseIds as Int32Array;
  const ids = new Int32Array(prompt.length + response.length);
  ids.set(prompt);
  ids.set(response, prompt.length);
  return ids;
}

function buildRow(calls: readonly CapturedCall[]): Sample {
  const tokenIds = contextOf(calls.at(-1) as CapturedCall);
  const lossMask = new Uint8Array(tokenIds.length);
  const samplingLogprobs = new Float32Array(tokenIds.length).fill(Number.NaN);
  const policyVersions = new Int32Array(tokenIds.length).fill(-1);
  for (const call of calls) {
    const start = (call.promptIds as Int32Array).length;
    const end = start + (call.responseIds as Int32Array).length;
    lossMask.fill(1, start, end);
    const logprobs = call.logprobs as Float32Array;
    samplingLogprobs.set(logprobs.subarray(0, end - start), start);
    policyVersions.fill(call.policyVersion, start, end);
  }
  const { rolloutId, attemptId } = calls[0] as CapturedCall;
  const callIds = calls.map((call) => call.callId);
  return { rolloutId, attemptId, tokenIds, lossMask, samplingLogprobs, policyVersions, callIds };
}
