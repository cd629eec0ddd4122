import { create } from "@bufbuild/protobuf";
import {
  type Binding,
  CaptureSettingsSchema,
  type GateCommand,
  type PolicyUpdate,
  PolicyUpdateSchema,
  type Welcome,
  WelcomeSchema,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";

/** The policy that sidecars send calls to. */
export interface ServedPolicy {
  readonly model: string;
  readonly version: number;
  readonly endpoints: readonly {
    /** Base URL up to and including /v1. */
    readonly url: string;
    readonly apiKey?: string;
    /** Model name to ask this engine for. */
    readonly model?: string;
    readonly cacheSalt?: string;
  }[];
}

/** What every sidecar is told when it connects. */
export interface CaptureRules {
  /** Default false: token ids say all that training needs, at a twentieth of the bytes. */
  readonly captureText?: boolean;
  readonly redactionPatterns?: readonly string[];
  readonly trainOverrides?: Readonly<Record<string, unknown>>;
  readonly evalOverrides?: Readonly<Record<string, unknown>>;
  readonly requireCanary?: boolean;
  readonly deduplicateRetries?: boolean;
}

export interface RolloutBinding {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly sidecarId: string;
  readonly mode: "train" | "eval";
}

/** What a sidecar is told first. */
export function buildWelcome(facts: {
  readonly ackedSeq: number;
  readonly capture: CaptureRules;
  readonly policy: PolicyUpdate | undefined;
  readonly gate: GateCommand;
  readonly tokenPublicKeyPem: string;
  readonly bindings: readonly Binding[];
  readonly storeId: string;
}): Welcome {
  const { capture } = facts;
  return create(WelcomeSchema, {
    ackedSeq: BigInt(facts.ackedSeq),
    capture: create(CaptureSettingsSchema, {
      captureText: capture.captureText ?? false,
      redactionPatterns: [...(capture.redactionPatterns ?? [])],
      trainOverridesJson: jsonOrEmpty(capture.trainOverrides),
      evalOverridesJson: jsonOrEmpty(capture.evalOverrides),
      requireCanary: capture.requireCanary ?? false,
      deduplicateRetries: capture.deduplicateRetries ?? true,
    }),
    ...(facts.policy !== undefined && { policy: facts.policy }),
    gate: facts.gate,
    tokenPublicKeyPem: facts.tokenPublicKeyPem,
    bindings: [...facts.bindings],
    storeId: facts.storeId,
  });
}

export function buildPolicyUpdate(policy: ServedPolicy): PolicyUpdate {
  return create(PolicyUpdateSchema, {
    model: policy.model,
    version: BigInt(policy.version),
    endpoints: policy.endpoints.map(({ url, apiKey = "", model = "", cacheSalt = "" }) => ({
      url,
      apiKey,
      model,
      cacheSalt,
    })),
  });
}

function jsonOrEmpty(value: Readonly<Record<string, unknown>> | undefined): string {
  return value === undefined ? "" : JSON.stringify(value);
}
