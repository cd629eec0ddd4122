import { closeSync, openSync, writeFileSync } from "node:fs";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Logger } from "../../runtime/log.ts";
import { createRedactor } from "../redaction/redactor.ts";
import type { FinishedCall } from "./finished-call.ts";
import type { RecordSink, SidecarEvent } from "./record-sink.ts";

/**
 * One JSON object per line and record, for a harness author without a controller. Appends to the
 * file; a line is whole or, after a crash, the last one.
 */
export function openJsonlSink(path: string, log: Logger): RecordSink {
  let file: number;
  try {
    file = openSync(path, "a", 0o600);
  } catch (cause) {
    throw new OutriggerError(
      "capture-file-unwritable",
      `cannot write ${path}: ${(cause as Error).message}`,
      { origin: "user", hint: "Give --capture-file a path in a folder that exists.", cause },
    );
  }
  let isHealthy = true;
  let isOpen = true;
  /** A write that failed may have left the beginning of a line. */
  let start = "";
  const append = (...lines: readonly unknown[]): boolean => {
    if (!isOpen) return false;
    try {
      writeFileSync(file, start + lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
      isHealthy = true;
      start = "";
      return true;
    } catch (error) {
      start = "\n";
      if (isHealthy) log.error({ error: (error as Error).message, path }, "records are being lost");
      isHealthy = false;
      return false;
    }
  };
  return {
    record: (call) => append(...callLines(call)),
    event: (event: SidecarEvent) => append({ type: "event", ...event }),
    isUnderPressure: false,
    get isHealthy() {
      return isHealthy;
    },
    close: async () => {
      if (isOpen) closeSync(file);
      isOpen = false;
    },
  };
}

/**
 * One line per choice, as `outrigger assemble` reads it, with what else is known of the request
 * beside; a request without any choice is a line of the type `request`. A logprob keeps its
 * float32 value; NaN becomes null. Text is redacted by the built-in rules. `sensitive` names the
 * members that reveal what was said: ids do as text does, and nothing can be taken out of them.
 */
export function callLines(call: FinishedCall): Record<string, unknown>[] {
  const { requestText, responseText, promptIds, choices, timing, policyVersion, ...rest } = call;
  const { retryOf, replayOf, sideCallClass, usage } = call;
  const request = {
    ...rest,
    policyVersion,
    startedAt: timing.receivedAtMs,
    finishedAt: timing.finishedAtMs,
    timing,
    usage: usage && { promptTokens: usage.promptTokens, completionTokens: usage.completionTokens },
    ...(sideCallClass !== undefined && { sideCall: true }),
    ...((replayOf ?? retryOf) !== undefined && { retryOf: replayOf ?? retryOf }),
    ...(requestText !== undefined && { requestText: redacted(requestText) }),
    ...(responseText !== undefined && { responseText: redacted(responseText) }),
    promptIds: promptIds === null ? null : [...promptIds],
    sensitive: ["promptIds", "responseIds", "logprobs", "requestText", "responseText"],
  };
  if (choices.length === 0) return [{ type: "request", ...request }];
  return choices.map(({ index, responseIds, logprobs, ...choice }) => ({
    type: "call",
    ...request,
    ...choice,
    choiceIndex: index,
    responseIds: responseIds === null ? null : [...responseIds],
    logprobs: logprobs === null ? null : [...logprobs],
  }));
}

const redactor = createRedactor();

function redacted(bytes: Uint8Array): string {
  return Buffer.from(redactor.redactBytes(bytes)).toString("utf8");
}
