import type { Call } from "../../core/call.ts";
import type { RolloutState } from "../../core/rollouts/rollout-state.ts";

/** What Agent Lightning's API needs of the controller; whoever serves it passes the real parts. */
export interface AglPort {
  readonly rollouts: AglRollouts;
  readonly records: AglRecords;
  readonly gate: AglGate;
  readonly facts: AglFacts;
  readonly authorize: (
    credential: string | undefined,
    access: AglAccess,
  ) => Promise<"allowed" | "unauthenticated" | "forbidden">;
  /** The token with which a call of an attempt is sent to a sidecar. */
  readonly signCallToken: (
    rolloutId: string,
    attemptId: string,
    mode: "train" | "eval",
  ) => Promise<string>;
  /** Base URLs of the sidecars that are connected. */
  readonly sidecarUrls: () => readonly string[];
  readonly publishModels: (models: readonly AglModel[]) => void;
  readonly includesSideCalls: boolean;
  readonly now: () => number;
  readonly randomId: () => string;
}

/** `admin` reaches everything; the others one attempt. */
export type AglAccess =
  | { readonly scope: "admin" }
  | {
      readonly scope: "call" | "event" | "reward";
      readonly rolloutId: string;
      readonly attemptId: string;
    };

export interface AglModel {
  readonly model: string;
  /** Base URL up to and including /v1. */
  readonly endpoint: string;
  readonly version: number;
}

export interface PortRollout {
  readonly rolloutId: string;
  readonly terminalSeq?: number;
  readonly mode: "train" | "eval";
  readonly input: Readonly<Record<string, unknown>>;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly state: RolloutState;
  readonly rollout: { readonly attempts: readonly { readonly attemptId: string }[] };
  readonly endReason?: string;
  readonly errorMessage?: string;
  readonly revision: number;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

export interface PortNewRollout {
  readonly rolloutId: string;
  readonly mode: "train" | "eval";
  readonly purpose: string;
  readonly taskId: string;
  readonly input: Readonly<Record<string, unknown>>;
  readonly metadata: Readonly<Record<string, unknown>>;
}

export interface AglRollouts {
  create(rollouts: readonly PortNewRollout[]): Promise<readonly PortRollout[]>;
  get(rolloutId: string): Promise<PortRollout | undefined>;
  list(states: readonly RolloutState[], limit: number): Promise<readonly PortRollout[]>;
  /** Terminal ones with `after` < terminalSeq ≤ `through`. */
  terminal(after: number, through: number): Promise<readonly PortRollout[]>;
  /** How many ever became terminal, removed ones included. */
  terminalCount(): Promise<number>;
  /** Replaces the metadata; with `asChange` it counts as a revision. */
  annotate(
    rolloutId: string,
    metadata: Readonly<Record<string, unknown>>,
    asChange: boolean,
  ): Promise<void>;
  /** An attempt that somebody else runs. */
  startAttempt(rolloutId: string): Promise<void>;
  /** Ends the attempt that is open, and the process of it that runs here. */
  endAttempt(rolloutId: string, isSuccess: boolean, message: string | undefined): Promise<void>;
  cancel(rolloutId: string): Promise<void>;
  /** Ends what runs, then forgets the rollout with its calls, events and files. */
  remove(rolloutId: string): Promise<void>;
}

/** One request as the sidecar recorded it. */
export interface PortRequest {
  readonly calls: readonly Call[];
  readonly requestId: string;
  readonly model: string;
  readonly engine: string;
  readonly policyVersion: number;
  readonly httpStatus: number;
  /** Empty when the engine answered. */
  readonly errorReason: string;
  readonly delivered: boolean;
  readonly receivedAtMs: number;
  readonly finishedAfterMs: number;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
  /** Redacted JSON texts; null where text is not captured. */
  readonly requestText: string | null;
  readonly responseText: string | null;
}

export interface PortEvent {
  readonly eventId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}

export interface AglRecords {
  /** In order of arrival. */
  requests(
    rolloutId: string,
    attemptId: string,
    withText: boolean,
  ): Promise<readonly PortRequest[]>;
  events(rolloutId: string, attemptId: string): Promise<readonly PortEvent[]>;
  /** Attempts with a call or an event, by the time of their first one. */
  attempts(rolloutId: string): Promise<readonly string[]>;
  addEvent(event: PortEvent): Promise<void>;
}

export interface AglGate {
  /** Shuts every sidecar's gate; resolves with true when all have reported drained. */
  pause(reason: string): Promise<boolean>;
  resume(): void;
  /** Calls that are at an engine, as the sidecars last said. */
  inFlight(): number;
}

/** Small durable values by name. */
export interface AglFacts {
  fact<T>(name: string): Promise<T | undefined>;
  setFact(name: string, value: unknown): Promise<void>;
}
