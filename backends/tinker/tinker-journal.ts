import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { writeDurably } from "../../runtime/durable-files.ts";

/** JSON has no NaN: what a server does not report is null in the file. */
const number = z
  .number()
  .nullable()
  .transform((value) => value ?? Number.NaN);

const updateResult = z.object({
  updateId: z.string(),
  version: z.int(),
  applied: z.boolean(),
  sampleCount: z.int(),
  trainedTokenCount: z.int(),
  loss: number,
  gradNorm: number,
  logprobGap: z.object({ meanAbs: number, p99Abs: number, maxAbs: number, kl: number }),
  meanRatio: number,
  clippedFraction: number,
  metrics: z.record(z.string(), number),
});

const checkpoint = z.object({
  version: z.int(),
  /** `tinker://…/weights/…`: weights and optimizer state. */
  statePath: z.string(),
  updates: z.array(updateResult),
});

const journalSchema = z.object({
  format: z.literal("outrigger-tinker/1"),
  /** What the journal belongs to; another server or model has another history. */
  url: z.string(),
  baseModel: z.string(),
  /** The server's model that is exactly at `version`; null when it must be made from `statePath`. */
  modelId: z.string().nullable(),
  version: z.int().nonnegative(),
  statePath: z.string().nullable(),
  samplerPath: z.string().nullable(),
  /** The next sequence id; ids are never used twice, whatever becomes of the calls. */
  nextSeqId: z.int().positive(),
  nextModelSeqId: z.int().nonnegative(),
  /** Whether the server knows a call by its sequence id; null until it was asked. */
  isRepeatable: z.boolean().nullable(),
  updates: z.array(updateResult),
  checkpoints: z.record(z.string(), checkpoint),
  /** An update whose calls may have been sent, with the ids and the body that they have. */
  pending: z.object({ updateId: z.string(), bodyHash: z.string(), firstSeqId: z.int() }).nullable(),
});

export type JournalState = Readonly<z.output<typeof journalSchema>>;

/**
 * What must outlive the process to train on a Tinker server: written and synced before each call
 * that depends on it.
 */
export interface TinkerJournal {
  readonly state: JournalState;
  write(change: Partial<JournalState>): Promise<void>;
}

export async function openTinkerJournal(
  directory: string,
  identity: { readonly url: string; readonly baseModel: string },
): Promise<TinkerJournal> {
  await mkdir(directory, { recursive: true });
  const path = join(directory, "tinker.json");
  let state = (await read(path)) ?? fresh(identity);
  if (state.url !== identity.url || state.baseModel !== identity.baseModel) {
    throw new OutriggerError(
      "backend-differs",
      `${path} is of ${state.baseModel} at ${state.url}, the experiment names ${identity.baseModel} at ${identity.url}`,
      { origin: "user", hint: "Start a new run, or put the experiment's backend section back." },
    );
  }
  return {
    get state() {
      return state;
    },
    write: async (change) => {
      const next = { ...state, ...change };
      await writeDurably(path, `${JSON.stringify(next, null, 1)}\n`);
      state = next;
    },
  };
}

const fresh = (identity: { readonly url: string; readonly baseModel: string }): JournalState => ({
  format: "outrigger-tinker/1",
  ...identity,
  modelId: null,
  version: 0,
  statePath: null,
  samplerPath: null,
  nextSeqId: 1,
  nextModelSeqId: 0,
  isRepeatable: null,
  updates: [],
  checkpoints: {},
  pending: null,
});

async function read(path: string): Promise<JournalState | undefined> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  const parsed = journalSchema.safeParse(parseJson(text));
  if (parsed.success) return parsed.data;
  throw new OutriggerError(
    "journal-invalid",
    `${path} cannot be used: ${z.prettifyError(parsed.error)}`,
    { origin: "user", hint: "The file is damaged; start a new run." },
  );
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
