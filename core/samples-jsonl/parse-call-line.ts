import type { CapturedCall } from "../assembly/captured-call.ts";
import type { PolicyVersionSpan } from "../call.ts";
import { OutriggerError } from "../outrigger-error.ts";

type Json = Record<string, unknown>;

/**
 * Parses one line of a calls file. Numbers keep their double precision. A logprob that is `null`
 * or, as Python writes it, `NaN` or `Infinity`, is read as not a number, which makes the call
 * incomplete; ids that are not integers are an error of the file. Undefined for a line that says by
 * its `type` that it is no call: the sidecar's file has events too.
 *
 * @throws OutriggerError `calls-line-invalid`, naming the line and the field.
 */
export function parseCallLine(text: string, line: number): CapturedCall | undefined {
  const json = parseObject(text, line);
  if (json.type !== undefined && json.type !== "call") return undefined;
  const fail = (problem: string): never => {
    throw invalidLine(line, problem);
  };
  const promptIds = readIds(json, "promptIds", fail);
  const responseIds = readIds(json, "responseIds", fail);
  const usage = readUsage(json.usage, fail);
  const policyVersions = readVersions(json.policyVersions, fail);
  const incompleteReason = readOptional(json, "incompleteReason", "string", fail);
  const sideCall = readOptional(json, "sideCall", "boolean", fail);
  const retryOf = readOptional(json, "retryOf", "string", fail);
  return {
    callId: read(json, "callId", "string", fail),
    rolloutId: read(json, "rolloutId", "string", fail),
    attemptId: read(json, "attemptId", "string", fail),
    requestId: read(json, "requestId", "string", fail),
    choiceIndex: readInteger(json, "choiceIndex", fail),
    promptIds,
    responseIds,
    logprobs: readLogprobs(json.logprobs, fail),
    policyVersion: readInteger(json, "policyVersion", fail),
    ...(policyVersions === undefined ? {} : { policyVersions }),
    startedAt: read(json, "startedAt", "number", fail),
    finishedAt: read(json, "finishedAt", "number", fail),
    delivered: read(json, "delivered", "boolean", fail),
    complete: read(json, "complete", "boolean", fail),
    ...(incompleteReason === undefined ? {} : { incompleteReason }),
    finishReason: readOptional(json, "finishReason", "string", fail) ?? null,
    usage,
    ...(sideCall === undefined ? {} : { sideCall }),
    ...(retryOf === undefined ? {} : { retryOf }),
  };
}

type Fail = (problem: string) => never;

function parseObject(text: string, line: number): Json {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    try {
      json = JSON.parse(withoutBareNumbers(text));
    } catch (cause) {
      throw invalidLine(line, `not JSON: ${(cause as Error).message}`);
    }
  }
  if (typeof json === "object" && json !== null && !Array.isArray(json)) return json as Json;
  throw invalidLine(line, `a call is a JSON object, not ${describe(json)}`);
}

/** Python's json module writes NaN and Infinity, which JSON does not have. */
function withoutBareNumbers(text: string): string {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g, (match) =>
    match.startsWith('"') ? match : "null",
  );
}

interface Types {
  string: string;
  number: number;
  boolean: boolean;
}

function read<T extends keyof Types>(json: Json, name: string, type: T, fail: Fail): Types[T] {
  const value = json[name];
  if (value === undefined) fail(`field ${name} is missing`);
  if (typeof value !== type) fail(`${name} must be a ${type}, not ${describe(value)}`);
  if (value === "") fail(`${name} must not be empty`);
  if (typeof value === "number" && !Number.isFinite(value)) fail(`${name} must be finite`);
  return value as Types[T];
}

function readOptional<T extends keyof Types>(
  json: Json,
  name: string,
  type: T,
  fail: Fail,
): Types[T] | undefined {
  return json[name] === undefined || json[name] === null ? undefined : read(json, name, type, fail);
}

function readInteger(json: Json, name: string, fail: Fail): number {
  const value = read(json, name, "number", fail);
  if (!isId(value)) fail(`${name} must be an integer from 0 on, not ${describe(value)}`);
  return value;
}

function readArray(value: unknown, name: string, fail: Fail): readonly unknown[] | null {
  if (value === undefined) fail(`field ${name} is missing (null where it is not known)`);
  if (value === null) return null;
  if (!Array.isArray(value)) fail(`${name} must be an array or null, not ${describe(value)}`);
  return value as readonly unknown[];
}

function readIds(json: Json, name: string, fail: Fail): Int32Array | null {
  const values = readArray(json[name], name, fail);
  if (values === null) return null;
  const ids = new Int32Array(values.length);
  for (let i = 0; i < ids.length; i++) {
    const id = values[i];
    if (!isId(id)) fail(`${name}[${i}] must be a token id, not ${describe(id)}`);
    ids[i] = id as number;
  }
  return ids;
}

function isId(value: unknown): value is number {
  return typeof value === "number" && value >= 0 && value === (value | 0);
}

function readLogprobs(value: unknown, fail: Fail): Float64Array | null {
  const values = readArray(value, "logprobs", fail);
  if (values === null) return null;
  const logprobs = new Float64Array(values.length);
  for (let i = 0; i < logprobs.length; i++) {
    const logprob = values[i];
    if (logprob !== null && typeof logprob !== "number") {
      fail(`logprobs[${i}] must be a number, not ${describe(logprob)}`);
    }
    logprobs[i] = logprob === null ? Number.NaN : (logprob as number);
  }
  return logprobs;
}

function readUsage(value: unknown, fail: Fail): CapturedCall["usage"] {
  if (value === undefined || value === null) return null;
  if (typeof value !== "object") fail(`usage must be an object or null, not ${describe(value)}`);
  const usage = value as Json;
  const inUsage: Fail = (problem) => fail(`usage: ${problem}`);
  return {
    promptTokens: readInteger(usage, "promptTokens", inUsage),
    completionTokens: readInteger(usage, "completionTokens", inUsage),
  };
}

function readVersions(value: unknown, fail: Fail): readonly PolicyVersionSpan[] | undefined {
  if (value === undefined || value === null) return undefined;
  if (!Array.isArray(value)) fail(`policyVersions must be an array, not ${describe(value)}`);
  return (value as readonly unknown[]).map((span, i) => {
    const inSpan: Fail = (problem) => fail(`policyVersions[${i}]: ${problem}`);
    if (typeof span !== "object" || span === null) inSpan("must be an object");
    const json = span as Json;
    return {
      version: readInteger(json, "version", inSpan),
      start: readInteger(json, "start", inSpan),
      end: readInteger(json, "end", inSpan),
    };
  });
}

function describe(value: unknown): string {
  if (value === undefined) return "nothing";
  const text = JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}

function invalidLine(line: number, problem: string): OutriggerError {
  return new OutriggerError("calls-line-invalid", `line ${line}: ${problem}`, {
    origin: "user",
    hint: "Each line is one call: callId, rolloutId, attemptId, requestId, choiceIndex, promptIds, responseIds, logprobs, policyVersion, startedAt, finishedAt, delivered, complete, finishReason, usage.",
  });
}
