import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { UpdateResult } from "../../../core/trainer-backend.ts";

/** What a checkpoint knows besides weights and moments: `outrigger.json`. */
export interface StateRecord {
  readonly format: "outrigger-checkpoint/1";
  readonly version: number;
  /** Results of the latest updates, newest last, so that a repeated one changes nothing. */
  readonly updates: readonly UpdateResult[];
}

const resultSchema = z.object({
  updateId: z.string(),
  version: z.int(),
  applied: z.boolean(),
  sampleCount: z.int(),
  trainedTokenCount: z.int(),
  loss: z.number(),
  gradNorm: z.number(),
  logprobGap: z.object({
    meanAbs: z.number(),
    p99Abs: z.number(),
    maxAbs: z.number(),
    kl: z.number(),
  }),
  meanRatio: z.number(),
  clippedFraction: z.number(),
  metrics: z.record(z.string(), z.number()),
});

const recordSchema = z.object({
  format: z.literal("outrigger-checkpoint/1"),
  version: z.int().nonnegative(),
  updates: z.array(resultSchema),
});

/** A controller repeats at most its last update; more are kept for people. */
const maxRememberedUpdates = 64;

export function withUpdate(record: StateRecord, result: UpdateResult): StateRecord {
  return {
    ...record,
    version: result.version,
    updates: [...record.updates, result].slice(-maxRememberedUpdates),
  };
}

export function parseStateRecord(text: string, path: string): StateRecord {
  let json: unknown;
  try {
    json = JSON.parse(text) as unknown;
  } catch (cause) {
    throw invalid(path, (cause as Error).message);
  }
  const parsed = recordSchema.safeParse(json);
  if (!parsed.success) throw invalid(path, z.prettifyError(parsed.error));
  return parsed.data;
}

const invalid = (path: string, message: string): OutriggerError =>
  new OutriggerError("checkpoint-invalid", `${path}: ${message}`, {
    origin: "user",
    hint: "The directory is no checkpoint of the native backend, or it is damaged.",
  });
