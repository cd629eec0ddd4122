import { z } from "zod";
import type { RolloutState } from "../../core/rollouts/rollout-state.ts";
import type { PortRollout } from "./agl-port.ts";

/** Agent Lightning's names of states. */
export const aglStates = ["queuing", "running", "succeeded", "failed"] as const;
export type AglState = (typeof aglStates)[number];

const json = z.record(z.string(), z.unknown());
const config = z.looseObject({
  timeout_seconds: z.int().min(1).max(86_400).default(3600),
  local: z
    .looseObject({
      agent_class: z.string().nullish(),
      env_map: z.record(z.string(), z.string()).default({}),
    })
    .nullish(),
  k8s: z.looseObject({ job_template: z.string().nullish() }).nullish(),
});
export type AglConfig = z.output<typeof config>;

/** Also the name of a directory. */
const rolloutId = z
  .string()
  .regex(/^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$/, "letters, digits, . _ -, at most 128");

export const createBody = z
  .array(
    z.looseObject({
      input: z.unknown().refine((value) => value !== undefined, "Field required"),
      is_train: z.boolean().default(true),
      config: config.nullish(),
      metadata: json.nullish(),
      rollout_id: rolloutId.nullish(),
    }),
  )
  .max(10_000);
export type CreateItem = z.output<typeof createBody>[number];

export const patchBody = z.looseObject({
  status: z
    .strictObject({
      state: z.enum(aglStates).nullish(),
      k8s_job_name: z.string().nullish(),
      last_attempt_id: z.string().min(1).max(256).nullish(),
      error_message: z.string().max(100_000).nullish(),
    })
    .nullish(),
});
export type StatusPatch = NonNullable<z.output<typeof patchBody>["status"]>;

export const eventBody = z.looseObject({
  event_type: z.string().min(1).max(256),
  data: json.default({}),
});
export const modelsBody = z
  .array(
    z.looseObject({
      model: z.string().min(1),
      endpoint: z.url(),
      version: z.int().default(0),
    }),
  )
  .max(1000);
export const pauseBody = z.looseObject({
  retry_after_seconds: z.int().min(0).default(5),
  reason: z.string().nullish(),
});

/** What is kept with a rollout beside the controller's own fields, under `metadata.agl`. */
export interface AglNote {
  /** The input was no object and is kept as `{value}`. */
  readonly isWrapped: boolean;
  readonly config: AglConfig;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly k8sJobName?: string | null;
  readonly lastAttemptId?: string | null;
  readonly errorMessage?: string | null;
}

/** The note of a rollout that was made through another API has the defaults. */
export function noteOf(rollout: PortRollout): AglNote {
  const note = rollout.metadata["agl"] as AglNote | undefined;
  return note ?? { isWrapped: false, config: config.parse({}), metadata: rollout.metadata };
}

export function inputOf(rollout: PortRollout): unknown {
  return noteOf(rollout).isWrapped ? rollout.input["value"] : rollout.input;
}

export function newNote(item: CreateItem): AglNote {
  const isObject =
    typeof item.input === "object" && item.input !== null && !Array.isArray(item.input);
  return {
    isWrapped: !isObject,
    config: item.config ?? config.parse({}),
    metadata: { batch_idx: null, sample_idx_in_batch: null, ...item.metadata },
  };
}

/** A cancelled rollout is a failed one to Agent Lightning, which knows no other word. */
const stateNames: Readonly<Record<RolloutState, AglState>> = {
  queued: "queuing",
  running: "running",
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "failed",
};

export function aglStateOf(state: RolloutState): AglState {
  return stateNames[state];
}

export function statesOf(names: readonly AglState[]): RolloutState[] {
  const wanted = new Set<AglState>(names);
  return (Object.keys(stateNames) as RolloutState[]).filter((s) => wanted.has(stateNames[s]));
}

/** The attempt whose events the reader gets. */
export function lastAttemptOf(rollout: PortRollout): string | null {
  return noteOf(rollout).lastAttemptId ?? rollout.rollout.attempts.at(-1)?.attemptId ?? null;
}

/** The rollout object of the wire; times are seconds. */
export function toAglRollout(rollout: PortRollout): unknown {
  const note = noteOf(rollout);
  const { local, k8s, ...rest } = note.config;
  return {
    rollout_id: rollout.rolloutId,
    input: inputOf(rollout),
    is_train: rollout.mode === "train",
    config: { ...rest, local: local ?? null, k8s: k8s ?? null },
    metadata: note.metadata,
    status: {
      state: aglStateOf(rollout.state),
      k8s_job_name: note.k8sJobName ?? null,
      last_attempt_id: lastAttemptOf(rollout),
      error_message: note.errorMessage ?? errorMessageOf(rollout),
      version: rollout.revision,
      created_at: rollout.createdAtMs / 1000,
      updated_at: rollout.updatedAtMs / 1000,
    },
  };
}

function errorMessageOf({ state, endReason, errorMessage }: PortRollout): string | null {
  if (aglStateOf(state) !== "failed") return null;
  if (errorMessage !== undefined) return `${endReason ?? "failed"}: ${errorMessage}`;
  return endReason ?? (state === "cancelled" ? "cancelled" : "failed");
}

/** `data_id` of the list of terminal rollouts. */
export function dataIdOf(rollout: PortRollout): string {
  const input = inputOf(rollout);
  if (typeof input !== "object" || input === null) return "";
  const { data_id: dataId, instance_id: instanceId } = input as Record<string, unknown>;
  for (const id of [dataId, instanceId]) {
    if (typeof id === "string" && id !== "") return id;
    if (typeof id === "number" && id !== 0) return String(id);
  }
  return "";
}

/** What a PATCH of the status means for the controller. */
export type PatchDecision =
  | { readonly kind: "nothing" }
  | { readonly kind: "annotate" }
  | { readonly kind: "start" }
  | { readonly kind: "end"; readonly isSuccess: boolean }
  | { readonly kind: "cancel" }
  | { readonly kind: "forbidden"; readonly from: AglState; readonly to: AglState };

/** queuing -> running, failed; running -> succeeded, failed; nothing else. */
export function decidePatch(state: RolloutState, patch: StatusPatch): PatchDecision {
  const given = Object.values(patch).some((value) => value !== undefined);
  if (!given) return { kind: "nothing" };
  const from = aglStateOf(state);
  const to = patch.state ?? undefined;
  if (to === undefined) return { kind: "annotate" };
  if (from === "queuing" && to === "running") return { kind: "start" };
  if (from === "queuing" && to === "failed") return { kind: "cancel" };
  if (from === "running" && (to === "succeeded" || to === "failed")) {
    return { kind: "end", isSuccess: to === "succeeded" };
  }
  return { kind: "forbidden", from, to };
}
