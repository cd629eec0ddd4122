import * as z from "zod";
import { logLevels } from "../runtime/log.ts";

const milliseconds = z.number().int().min(0);
const bytes = z.number().int().min(0);

/**
 * The sidecar's own configuration. What it must agree on with the controller (gate, engines,
 * overrides, redaction, keys) is not here: it comes with the controller's welcome.
 */
export const sidecarConfigSchema = z.strictObject({
  host: z.string().default("127.0.0.1").describe("address to listen on"),
  port: z.number().int().min(0).max(65535).default(8787).describe("0 takes any free port"),
  /** Base URL at which harnesses reach this sidecar; derived from host and port when absent. */
  harnessUrl: z.url().optional(),
  sidecarId: z.string().min(1).optional(),
  logLevel: z.enum(logLevels).default("info"),
  controller: z
    .strictObject({
      address: z.string().min(1).optional().describe("host:port of the controller's gRPC server"),
      token: z.string().optional().meta({ secret: true }),
      /** PEM file of the authority that signs the controller's certificate: turns TLS on. */
      caFile: z.string().optional(),
      certFile: z.string().optional(),
      keyFile: z.string().optional(),
    })
    .prefault({}),
  engines: z
    .strictObject({
      /** Engines without a controller; with one, its policy endpoints replace them. */
      urls: z.array(z.url()).default([]),
      apiKey: z.string().optional().meta({ secret: true }),
      model: z.string().min(1).optional(),
      kind: z.enum(["vllm", "sglang", "native"]).default("vllm"),
      connectTimeoutMs: milliseconds.default(5_000),
      firstByteTimeoutMs: milliseconds.default(0).describe("0: no limit"),
      idleTimeoutMs: milliseconds.default(0).describe("0: no limit"),
      healthIntervalMs: milliseconds.min(10).default(2_000),
      canaryTimeoutMs: milliseconds.min(1).default(60_000),
      canaryWaitMs: milliseconds.default(10_000),
    })
    .prefault({}),
  /** The one rollout that this sidecar is for (one pod, one rollout). */
  binding: z
    .strictObject({
      rolloutId: z.string().min(1).optional(),
      attemptId: z.string().min(1).default("0"),
      mode: z.enum(["train", "eval"]).default("train"),
    })
    .prefault({}),
  identity: z
    .strictObject({
      bindSessions: z.boolean().default(false).describe("deployed agents: a rollout per session"),
      trustPath: z
        .boolean()
        .optional()
        .describe("take rollout names in paths as they are; only without a controller by default"),
      allowRemote: z.boolean().default(false).describe("other than loopback without a controller"),
    })
    .prefault({}),
  /** Records as JSON lines, without a controller. */
  captureFile: z.string().min(1).optional(),
  /** Bodies, redacted. Without a controller only when true; with one, false forbids what it asks. */
  captureText: z.boolean().optional(),
  spool: z
    .strictObject({
      dir: z.string().min(1).default(".outrigger/sidecar-spool"),
      maxBytes: bytes.default(1024 ** 3),
    })
    .prefault({}),
  limits: z
    .strictObject({
      maxRequestBytes: bytes.default(64 * 1024 ** 2),
      maxResponseBytes: bytes.default(256 * 1024 ** 2),
      maxReplayBytes: bytes.default(256 * 1024),
      maxRecentBytes: bytes.default(8 * 1024 ** 2),
      pressureHoldMs: milliseconds.default(30_000),
    })
    .prefault({}),
  keepAliveMs: milliseconds.default(15_000),
  retries: z
    .strictObject({
      deduplicate: z.boolean().default(true).describe("without a controller"),
      windowMs: milliseconds.default(60_000),
      /** Every identical request counts as a retry: for harnesses that do not mark theirs. */
      always: z.boolean().default(false),
    })
    .prefault({}),
  translation: z
    .strictObject({
      developerRole: z.enum(["system", "developer"]).optional(),
      midConversationSystemRole: z.enum(["system", "user"]).optional(),
      maxTokensMember: z.enum(["max_tokens", "max_completion_tokens"]).optional(),
      reasoningMember: z.enum(["drop", "enable-thinking", "reasoning-effort"]).optional(),
      chatKeepAlive: z.enum(["none", "comment"]).optional(),
    })
    .prefault({}),
  graceMs: milliseconds.default(30_000).describe("time that running calls get at a shutdown"),
});

export type SidecarConfig = z.output<typeof sidecarConfigSchema>;
