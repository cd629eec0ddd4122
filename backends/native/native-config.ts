import { z } from "zod";
import { logLevels } from "../../runtime/log.ts";

const port = z.int().min(0).max(65_535);

/** Configuration of the native backend's process. */
export const nativeConfigSchema = z.strictObject({
  /** Hugging Face model directory: the start policy, and the reference for KL. */
  model: z.string().min(1),
  /** Where weights, optimizer state and named checkpoints live. */
  state: z.string().min(1),
  /** Address to listen on, for policy and trainer; anything but loopback needs `apiKey`. */
  host: z.string().default("127.0.0.1"),
  policyPort: port.default(0),
  grpcPort: port.default(0),
  /** Policy URL to tell the controller where `host` is not one that others can call. */
  policyUrl: z.url().optional(),
  /** Name of the served model; the model directory's name unless given. */
  modelName: z.string().min(1).optional(),
  apiKey: z.string().min(16).meta({ secret: true }).optional(),
  /** Compute library and device: "auto" or one of the names that `--help` lists. */
  compute: z.string().default("auto"),
  /** Threads of the compute library; all that the process may use unless given. */
  threads: z.int().positive().optional(),
  seed: z.int().nonnegative().default(0),
  /** Sequences that are decoded at once; each has a key-value cache. */
  slots: z.int().positive().default(64),
  /** Longest prompt and response together, and longest row; the model's own limit unless given. */
  maxLength: z.int().positive().optional(),
  maxWaiting: z.int().nonnegative().default(1024),
  /** Padded tokens of one training micro-batch. */
  microBatchTokens: z.int().positive().default(16_384),
  logLevel: z.enum(logLevels).default("info"),
});

export type NativeConfig = z.output<typeof nativeConfigSchema>;
