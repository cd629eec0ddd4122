import { describe, expect, it } from "vitest";
import type { RolloutState } from "../../core/rollouts/rollout-state.ts";
import type { PortRollout } from "./agl-port.ts";
import {
  type AglState,
  createBody,
  dataIdOf,
  decidePatch,
  newNote,
  patchBody,
  statesOf,
  toAglRollout,
} from "./agl-wire.ts";

describe("decidePatch", () => {
  it.each<[RolloutState, AglState, string]>([
    ["queued", "running", "start"],
    ["queued", "failed", "cancel"],
    ["queued", "succeeded", "forbidden"],
    ["queued", "queuing", "forbidden"],
    ["running", "succeeded", "end"],
    ["running", "failed", "end"],
    ["running", "queuing", "forbidden"],
    ["running", "running", "forbidden"],
    ["succeeded", "failed", "forbidden"],
    ["failed", "running", "forbidden"],
    ["cancelled", "succeeded", "forbidden"],
  ])("%s -> %s: %s", (state, to, kind) => {
    expect(decidePatch(state, { state: to }).kind).toBe(kind);
  });

  it("without a state it only annotates; empty it is nothing", () => {
    expect(decidePatch("succeeded", { k8s_job_name: "j" }).kind).toBe("annotate");
    expect(decidePatch("running", { error_message: null }).kind).toBe("annotate");
    expect(decidePatch("running", {}).kind).toBe("nothing");
  });
});

const rollout = (over: Partial<PortRollout> & { input?: unknown } = {}): PortRollout => {
  const [item] = createBody.parse([{ input: over.input ?? { q: 1 } }]);
  const note = newNote(item as NonNullable<typeof item>);
  return {
    rolloutId: "r",
    mode: "train",
    state: "queued",
    rollout: { attempts: [] },
    revision: 1,
    createdAtMs: 1500,
    updatedAtMs: 2500,
    ...over,
    input: (note.isWrapped
      ? { value: over.input }
      : (over.input ?? { q: 1 })) as PortRollout["input"],
    metadata: { agl: note },
  };
};

describe("the rollout object", () => {
  it("has every field, with the defaults", () => {
    expect(toAglRollout(rollout())).toEqual({
      rollout_id: "r",
      input: { q: 1 },
      is_train: true,
      config: { timeout_seconds: 3600, local: null, k8s: null },
      metadata: { batch_idx: null, sample_idx_in_batch: null },
      status: {
        state: "queuing",
        k8s_job_name: null,
        last_attempt_id: null,
        error_message: null,
        version: 1,
        created_at: 1.5,
        updated_at: 2.5,
      },
    });
  });

  it.each([[[1, 2]], ["text"], [7], [null]])("gives back the input %j", (input) => {
    const [item] = createBody.parse([{ input }]);
    const note = newNote(item as NonNullable<typeof item>);
    const stored = { ...rollout(), input: { value: input }, metadata: { agl: note } };
    expect(toAglRollout(stored)).toMatchObject({ input });
  });

  it("says why it failed, and nothing where it did not", () => {
    const message = (over: Partial<PortRollout>) =>
      (toAglRollout(rollout(over)) as { status: { error_message: string } }).status.error_message;
    expect(message({ state: "failed", endReason: "timed-out" })).toBe("timed-out");
    expect(message({ state: "failed", endReason: "infra-error", errorMessage: "gone" })).toBe(
      "infra-error: gone",
    );
    expect(message({ state: "cancelled" })).toBe("cancelled");
    expect(message({ state: "running", endReason: "infra-error", errorMessage: "x" })).toBeNull();
  });

  it.each([
    [{ data_id: "d", instance_id: "i" }, "d"],
    [{ data_id: "", instance_id: "i" }, "i"],
    [{ data_id: 4 }, "4"],
    [{}, ""],
    [["data_id"], ""],
  ])("data_id of %j is %j", (input, id) => {
    expect(dataIdOf(rollout({ input } as never))).toBe(id);
  });
});

it("states: a cancelled rollout is a failed one", () => {
  expect(statesOf(["failed"])).toEqual(["failed", "cancelled"]);
  expect(statesOf(["queuing", "running"])).toEqual(["queued", "running"]);
});

it.each([
  ["an id that is no directory name", [{ input: 1, rollout_id: "../x" }]],
  ["no input", [{ is_train: true }]],
  ["an object instead of a list", { input: 1 }],
  ["a fractional time-out", [{ input: 1, config: { timeout_seconds: 1.5 } }]],
])("refuses %s", (_name, body) => {
  expect(createBody.safeParse(body).success).toBe(false);
});

it("refuses unknown status keys and states", () => {
  expect(patchBody.safeParse({ status: { sate: "failed" } }).success).toBe(false);
  expect(patchBody.safeParse({ status: { state: "cancelled" } }).success).toBe(false);
  expect(patchBody.safeParse({}).success).toBe(true);
});
