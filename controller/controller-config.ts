import { z } from "zod";
import { logLevels } from "../runtime/log.ts";

const port = z.int().min(0).max(65_535);

/** Configuration of a controller that runs alone: `outrigger controller`. */
export const controllerConfigSchema = z.strictObject({
  dir: z.string().min(1).default(".outrigger/controller").describe("database and token key"),
  host: z.string().min(1).default("127.0.0.1"),
  allowRemote: z
    .boolean()
    .default(false)
    .describe("listen beyond loopback; only behind something that encrypts"),
  grpcPort: port.default(8790).describe("sidecars connect here; 0 takes any free one"),
  httpPort: port.default(8791).describe("HTTP API; 0 takes any free one"),
  logLevel: z.enum(logLevels).default("info"),
  policy: z
    .strictObject({
      model: z.string().min(1).default("policy"),
      version: z.int().min(0).default(0),
      urls: z.array(z.url()).default([]).describe("engines, up to and including /v1"),
      apiKey: z.string().optional().meta({ secret: true }),
    })
    .prefault({}),
  capture: z
    .strictObject({
      text: z.boolean().default(false),
      redact: z.array(z.string()).default([]),
      requireCanary: z.boolean().default(true),
      deduplicateRetries: z.boolean().default(true),
    })
    .prefault({}),
});

export type ControllerConfig = z.output<typeof controllerConfigSchema>;
