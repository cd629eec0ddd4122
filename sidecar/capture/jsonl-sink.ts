import { closeSync, openSync, writeSync } from "node:fs";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Logger } from "../../runtime/log.ts";
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
  const append = (value: unknown): boolean => {
    if (!isOpen) return false;
    try {
      writeSync(file, `${JSON.stringify(value)}\n`);
      isHealthy = true;
      return true;
    } catch (error) {
      if (isHealthy) log.error({ error: (error as Error).message, path }, "records are being lost");
      isHealthy = false;
      return false;
    }
  };
  return {
    record: (call) => append(callLine(call)),
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

/** `logprobs` keep their float32 values; NaN becomes null. */
export function callLine(call: FinishedCall): unknown {
  const { requestText, responseText, promptIds, choices, ...rest } = call;
  return {
    type: "call",
    ...rest,
    promptIds: promptIds === null ? null : [...promptIds],
    choices: choices.map((choice) => ({
      ...choice,
      responseIds: choice.responseIds === null ? null : [...choice.responseIds],
      logprobs: choice.logprobs === null ? null : [...choice.logprobs],
    })),
    ...(requestText === undefined ? {} : { requestText: utf8(requestText) }),
    ...(responseText === undefined ? {} : { responseText: utf8(responseText) }),
  };
}

function utf8(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("utf8");
}
