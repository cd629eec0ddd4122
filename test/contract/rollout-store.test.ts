import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { migrations } from "../../controller/store/migrations.ts";
import { type Database, openDatabase } from "../../controller/store/open-database.ts";
import {
  createRolloutStore,
  type NewRollout,
  type RolloutStore,
} from "../../controller/store/rollout-store.ts";
import { type RolloutTables, rolloutMigrations } from "../../controller/store/rollout-tables.ts";
import { createStepStore, type StepStore } from "../../controller/store/step-store.ts";
import { defaultFailurePolicy } from "../../core/rollouts/failure-policy.ts";

interface Stores {
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  close(): Promise<void>;
}

/** Every implementation of the stores; PostgreSQL joins when there is one. */
const implementations: Readonly<Record<string, () => Promise<Stores>>> = {
  sqlite: async () => {
    const database: Database = await openDatabase({
      path: ":memory:",
      migrations: { ...migrations, ...rolloutMigrations },
    });
    const tables = database.withTables<RolloutTables>();
    return {
      rollouts: createRolloutStore(tables),
      steps: createStepStore(tables),
      close: () => database.destroy(),
    };
  },
};

const policy = defaultFailurePolicy;
const wanted = (rolloutId: string, over: Partial<NewRollout> = {}): NewRollout => ({
  rolloutId,
  mode: "train",
  purpose: "train",
  taskId: "t",
  input: { question: rolloutId },
  ...over,
});
const lease = { owner: "me", expiresAtMs: 1_000, directory: "/d" };

describe.each(Object.entries(implementations))("rollout store on %s", (_name, open) => {
  let stores: Stores;
  let rollouts: RolloutStore;
  beforeEach(async () => {
    stores = await open();
    ({ rollouts } = stores);
  });
  afterEach(() => stores.close());

  const attempt = async (rolloutId: string, attemptId: string): Promise<void> => {
    await rollouts.lease(rolloutId, attemptId, lease, policy, 10);
    await rollouts.markStarted(attemptId, { pid: 7, startTime: "x" }, 11);
  };
  const end = (
    rolloutId: string,
    attemptId: string,
    reason: "succeeded" | "infra-error",
    reward?: number,
  ) =>
    rollouts.end(
      rolloutId,
      { type: "attempt-ended", attemptId, reason },
      reward === undefined ? {} : { reward, grade: { why: "x" } },
      policy,
      20,
    );

  it("creates once: a known id is returned as it is", async () => {
    await rollouts.create([wanted("a")], 1);
    await attempt("a", "a.1");
    const again = await rollouts.create([wanted("a", { taskId: "other" }), wanted("b")], 2);
    expect(again.map((r) => [r.rolloutId, r.taskId, r.state, r.seq])).toEqual([
      ["a", "t", "running", 1],
      ["b", "t", "queued", 2],
    ]);
  });

  it("takes an attempt from lease to a graded end", async () => {
    await rollouts.create([wanted("a")], 1);
    await attempt("a", "a.1");
    expect((await rollouts.openAttempts()).map((a) => [a.attemptId, a.process?.pid])).toEqual([
      ["a.1", 7],
    ]);
    await end("a", "a.1", "succeeded", 0.5);
    expect(await rollouts.get("a")).toMatchObject({
      state: "succeeded",
      reward: 0.5,
      endReason: "succeeded",
      terminalSeq: 1,
      outcome: { reward: 0.5, isTrainable: true, isInBaseline: true },
      rollout: { acceptedAttemptId: "a.1" },
    });
    expect(await rollouts.attempts("a")).toMatchObject([
      { attemptId: "a.1", number: 1, endReason: "succeeded", reward: 0.5, grade: { why: "x" } },
    ]);
    expect(await rollouts.openAttempts()).toEqual([]);
  });

  it("leases a rollout to one attempt only", async () => {
    await rollouts.create([wanted("a")], 1);
    const tries = await Promise.all(
      ["a.1", "a.2", "a.3"].map((id) => rollouts.lease("a", id, lease, policy, 10)),
    );
    expect(tries.filter((t) => t.isChanged)).toHaveLength(1);
    expect(await rollouts.attempts("a")).toHaveLength(1);
  });

  it("re-queues what the infrastructure lost, then gives it up; what comes late changes nothing", async () => {
    await rollouts.create([wanted("a")], 1);
    for (const id of ["a.1", "a.2"]) {
      await attempt("a", id);
      await end("a", id, "infra-error");
      expect((await rollouts.get("a"))?.state).toBe("queued");
    }
    await attempt("a", "a.3");
    await rollouts.end("a", { type: "lease-expired", attemptId: "a.3" }, {}, policy, 30);
    const over = await rollouts.get("a");
    expect(over).toMatchObject({ state: "failed", endReason: "infra-error", terminalSeq: 1 });
    expect(over?.reward).toBeUndefined();
    expect((await end("a", "a.3", "succeeded", 1)).isChanged).toBe(false);
    expect(await rollouts.get("a")).toEqual(over);
    expect((await rollouts.attempts("a")).map((a) => a.endReason)).toEqual([
      "infra-error",
      "infra-error",
      "infra-error",
    ]);
  });

  it("lists by state, purpose, group and position, and terminal ones in order of their end", async () => {
    await rollouts.create(
      [
        wanted("a", { groupId: "g" }),
        wanted("b", { purpose: "eval-0", mode: "eval" }),
        wanted("c"),
      ],
      1,
    );
    for (const id of ["c", "a"]) {
      await attempt(id, `${id}.1`);
      await end(id, `${id}.1`, "succeeded", 1);
    }
    const ids = async (filter: Parameters<RolloutStore["list"]>[0]): Promise<string[]> =>
      (await rollouts.list(filter)).map((r) => r.rolloutId);
    expect(await ids({ states: ["queued"] })).toEqual(["b"]);
    expect(await ids({ purpose: "train" })).toEqual(["a", "c"]);
    expect(await ids({ groupId: "g" })).toEqual(["a"]);
    expect(await ids({ afterSeq: 1, limit: 1 })).toEqual(["b"]);
    expect((await rollouts.listTerminal(0, 9)).map((r) => r.rolloutId)).toEqual(["c", "a"]);
    expect((await rollouts.listTerminal(1, 9)).map((r) => r.rolloutId)).toEqual(["a"]);
    expect(await rollouts.countByState()).toEqual({ queued: 1, succeeded: 2 });
    expect(await rollouts.countByOutcome()).toEqual({ succeeded: 2 });
  });

  it("says which rollout is unknown", async () => {
    await expect(rollouts.lease("zz", "zz.1", lease, policy, 1)).rejects.toMatchObject({
      reason: "rollout-unknown",
    });
  });

  it("removes a rollout with its attempts", async () => {
    await rollouts.create([wanted("a")], 1);
    await attempt("a", "a.1");
    await rollouts.remove("a");
    expect(await rollouts.get("a")).toBeUndefined();
    expect(await rollouts.attempts("a")).toEqual([]);
  });

  it("admits a group and its rollouts together, and once", async () => {
    const { steps } = stores;
    const group = { groupId: "g0", groupIndex: 0, taskId: "t", admittedVersion: 3 };
    const members = [wanted("g0-0", { groupId: "g0" }), wanted("g0-1", { groupId: "g0" })];
    await steps.admitGroup(group, members, 5);
    await steps.admitGroup(group, members, 6);
    expect(await steps.activeGroups()).toEqual([{ ...group, admittedAtMs: 5, state: "active" }]);
    expect(await rollouts.list({ groupId: "g0" })).toHaveLength(2);
    expect(await steps.admittedCount()).toBe(1);
  });

  it("a step takes its groups before the update, and keeps its metrics after it", async () => {
    const { steps } = stores;
    for (const groupIndex of [0, 1]) {
      const group = { groupId: `g${groupIndex}`, groupIndex, taskId: "t", admittedVersion: 0 };
      await steps.admitGroup(group, [], 1);
    }
    const step = { stepIndex: 0, updateId: "r/step-1", fromVersion: 0, groupIds: ["g0"] };
    await steps.beginStep(step, 2);
    expect((await steps.activeGroups()).map((g) => g.groupId)).toEqual(["g1"]);
    expect(await steps.steps()).toEqual([{ ...step, state: "updating", startedAtMs: 2 }]);
    await expect(steps.beginStep(step, 3), "a step begins once").rejects.toThrow();
    await steps.finishStep(0, { loss: 1 }, 4);
    expect(await steps.steps()).toMatchObject([{ state: "published", metrics: { loss: 1 } }]);
    await steps.dropGroup("g1");
    await steps.dropGroup("g0");
    expect((await steps.groups(["g0", "g1"])).map((g) => g.state)).toEqual(["consumed", "dropped"]);
    expect((await steps.allGroups()).map((g) => g.groupId)).toEqual(["g0", "g1"]);
  });

  it("keeps facts", async () => {
    const { steps } = stores;
    expect(await steps.fact("x")).toBeUndefined();
    await steps.setFact("x", { a: 1 });
    await steps.setFact("x", { a: 2 });
    expect(await steps.fact("x")).toEqual({ a: 2 });
  });
});
