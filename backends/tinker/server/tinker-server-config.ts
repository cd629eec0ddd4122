import { z } from "zod";
import { logLevels } from "../../../runtime/log.ts";

/** Configuration of `outrigger backend tinker-server`. */
export const tinkerServerConfigSchema = z.strictObject({
  /** Hugging Face model directory: what every new model starts from. */
  model: z.string().min(1),
  /** Where saved weights are kept; the server is without other state. */
  state: z.string().min(1),
  /** Address to listen on; anything but loopback needs `apiKey`. */
  host: z.string().default("127.0.0.1"),
  port: z.int().min(0).max(65_535).default(0),
  /** The name of the base model to clients; the model directory's unless given. */
  modelName: z.string().min(1).optional(),
  apiKey: z.string().min(8).meta({ secret: true }).optional(),
  compute: z.string().default("auto"),
  threads: z.int().positive().optional(),
  seed: z.int().nonnegative().default(0),
  /** Sequences that are sampled at once. */
  slots: z.int().positive().default(64),
  maxLength: z.int().positive().optional(),
  maxWaiting: z.int().nonnegative().default(4096),
  microBatchTokens: z.int().positive().default(16_384),
  /** Models that are trained at the same time; each has weights and moments in memory. */
  maxModels: z.int().positive().default(4),
  sessionTimeoutMs: z.int().positive().default(600_000),
  holdMs: z.int().positive().max(40_000).default(20_000),
  maxBodyBytes: z.int().positive().default(268_435_456),
  logLevel: z.enum(logLevels).default("info"),
});

export type TinkerServerConfig = z.output<typeof tinkerServerConfigSchema>;
