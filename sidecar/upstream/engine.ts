import type { Dispatcher } from "undici";
import type { EngineProfile } from "../dialects/dialect.ts";

export interface EngineEndpoint {
  /** Base URL up to and including /v1, or the engine's root. */
  readonly url: string;
  /** Bearer credential for the engine; empty or undefined for none. */
  readonly apiKey?: string | undefined;
  /** Model name to ask this engine for; empty or undefined keeps the harness's. */
  readonly model?: string | undefined;
  /** Sent as `cache_salt` with each call; empty or undefined for none. */
  readonly cacheSalt?: string | undefined;
}

/** What a canary call through the real path showed. */
export interface CanaryResult {
  /** Undefined when ids, logprobs and counts were right: calls may be trained on. */
  readonly problem: string | undefined;
  readonly streamsIds: boolean;
  /** What the engine said that it is; undefined where it did not. */
  readonly kind: EngineProfile["kind"] | undefined;
  /** The model that was asked for; undefined where the engine named none. */
  readonly model: string | undefined;
  /** False when the engine was not reachable or not ready: ask again. */
  readonly isConclusive: boolean;
  readonly isUnreachable: boolean;
}

/** One engine as calls see it: an endpoint and the policy version that it serves. */
export interface Engine {
  /** The endpoint's URL without a slash at the end; its name everywhere. */
  readonly url: string;
  /** Path before `/v1`, without a slash at the end. */
  readonly basePath: string;
  readonly apiKey: string | undefined;
  readonly model: string | undefined;
  readonly cacheSalt: string | undefined;
  readonly pool: Dispatcher;
  readonly policyVersion: number;
  inFlight: number;
  isHealthy: boolean;
  canary: CanaryResult | undefined;
  /** Resolves when the first canary has ended, whatever it found. */
  firstCanary: Promise<void>;
  profile: EngineProfile;
}
