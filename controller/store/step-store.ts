import type { Kysely, Selectable } from "kysely";
import { createRollouts, type NewRollout } from "./rollout-store.ts";
import type { RolloutTables } from "./rollout-tables.ts";

export interface StoredGroup {
  readonly groupId: string;
  /** 0, 1, … in order of admission. */
  readonly groupIndex: number;
  readonly taskId: string;
  /** Policy version when it was admitted: none of its calls is older. */
  readonly admittedVersion: number;
  readonly admittedAtMs: number;
  readonly state: "active" | "consumed" | "dropped";
  readonly stepIndex?: number;
}

export interface StoredStep<Metrics = unknown> {
  readonly stepIndex: number;
  readonly updateId: string;
  readonly fromVersion: number;
  readonly state: "updating" | "published";
  readonly groupIds: readonly string[];
  readonly metrics?: Metrics;
  readonly startedAtMs: number;
  readonly endedAtMs?: number;
}

/** Groups and optimizer steps of a run, durable: what a resumed run goes on from. */
export interface StepStore {
  /** Makes the group and its rollouts in one transaction; a known group is left as it is. */
  admitGroup(
    group: Pick<StoredGroup, "groupId" | "groupIndex" | "taskId" | "admittedVersion">,
    rollouts: readonly NewRollout[],
    nowMs: number,
  ): Promise<void>;
  /** In order of admission. */
  activeGroups(): Promise<readonly StoredGroup[]>;
  groups(groupIds: readonly string[]): Promise<readonly StoredGroup[]>;
  /** Every group that was ever admitted, in order of admission. */
  allGroups(): Promise<readonly StoredGroup[]>;
  /** How many groups were ever admitted. */
  admittedCount(): Promise<number>;
  /** Takes the groups and notes the update, before the backend hears of it. */
  beginStep(
    step: Pick<StoredStep, "stepIndex" | "updateId" | "fromVersion" | "groupIds">,
    nowMs: number,
  ): Promise<void>;
  finishStep(stepIndex: number, metrics: unknown, nowMs: number): Promise<void>;
  dropGroup(groupId: string): Promise<void>;
  /** In order. */
  steps<Metrics>(): Promise<readonly StoredStep<Metrics>[]>;
  fact<T>(name: string): Promise<T | undefined>;
  setFact(name: string, value: unknown): Promise<void>;
}

type Db = Kysely<RolloutTables>;

export function createStepStore(db: Db): StepStore {
  return {
    admitGroup: (group, rollouts, nowMs) =>
      db.transaction().execute(async (tx) => {
        await tx
          .insertInto("rollout_group")
          .values({
            group_id: group.groupId,
            group_index: group.groupIndex,
            task_id: group.taskId,
            admitted_version: group.admittedVersion,
            admitted_at_ms: nowMs,
            state: "active",
            step_index: null,
          })
          .onConflict((c) => c.column("group_id").doNothing())
          .execute();
        await createRollouts(tx, rollouts, nowMs);
      }),
    activeGroups: async () => {
      const rows = await db
        .selectFrom("rollout_group")
        .selectAll()
        .where("state", "=", "active")
        .orderBy("group_index")
        .execute();
      return rows.map(toGroup);
    },
    groups: async (groupIds) => {
      const rows = await db
        .selectFrom("rollout_group")
        .selectAll()
        .where("group_id", "in", [...groupIds])
        .orderBy("group_index")
        .execute();
      return rows.map(toGroup);
    },
    allGroups: async () => {
      const rows = await db
        .selectFrom("rollout_group")
        .selectAll()
        .orderBy("group_index")
        .execute();
      return rows.map(toGroup);
    },
    admittedCount: async () => {
      const row = await db
        .selectFrom("rollout_group")
        .select(({ fn }) => fn.max<number | null>("group_index").as("last"))
        .executeTakeFirst();
      return row?.last === null || row === undefined ? 0 : Number(row.last) + 1;
    },
    beginStep: (step, nowMs) =>
      db.transaction().execute(async (tx) => {
        await tx
          .insertInto("step")
          .values({
            step_index: step.stepIndex,
            update_id: step.updateId,
            from_version: step.fromVersion,
            state: "updating",
            group_ids_json: JSON.stringify(step.groupIds),
            metrics_json: null,
            started_at_ms: nowMs,
            ended_at_ms: null,
          })
          .execute();
        if (step.groupIds.length === 0) return;
        await tx
          .updateTable("rollout_group")
          .set({ state: "consumed", step_index: step.stepIndex })
          .where("group_id", "in", [...step.groupIds])
          .execute();
      }),
    finishStep: async (stepIndex, metrics, nowMs) => {
      await db
        .updateTable("step")
        .set({ state: "published", metrics_json: JSON.stringify(metrics), ended_at_ms: nowMs })
        .where("step_index", "=", stepIndex)
        .execute();
    },
    dropGroup: async (groupId) => {
      await db
        .updateTable("rollout_group")
        .set({ state: "dropped" })
        .where("group_id", "=", groupId)
        .where("state", "=", "active")
        .execute();
    },
    steps: async <Metrics>() => {
      const rows = await db.selectFrom("step").selectAll().orderBy("step_index").execute();
      return rows.map((row) => toStep<Metrics>(row));
    },
    fact: async <T>(name: string) => {
      const row = await db
        .selectFrom("run_fact")
        .select("value_json")
        .where("name", "=", name)
        .executeTakeFirst();
      return row && (JSON.parse(row.value_json) as T);
    },
    setFact: async (name, value) => {
      const value_json = JSON.stringify(value);
      await db
        .insertInto("run_fact")
        .values({ name, value_json })
        .onConflict((c) => c.column("name").doUpdateSet({ value_json }))
        .execute();
    },
  };
}

function toGroup(row: Selectable<RolloutTables["rollout_group"]>): StoredGroup {
  return {
    groupId: row.group_id,
    groupIndex: row.group_index,
    taskId: row.task_id,
    admittedVersion: row.admitted_version,
    admittedAtMs: Number(row.admitted_at_ms),
    state: row.state,
    ...(row.step_index !== null && { stepIndex: row.step_index }),
  };
}

function toStep<Metrics>(row: Selectable<RolloutTables["step"]>): StoredStep<Metrics> {
  return {
    stepIndex: row.step_index,
    updateId: row.update_id,
    fromVersion: row.from_version,
    state: row.state,
    groupIds: JSON.parse(row.group_ids_json) as string[],
    ...(row.metrics_json !== null && { metrics: JSON.parse(row.metrics_json) as Metrics }),
    startedAtMs: Number(row.started_at_ms),
    ...(row.ended_at_ms !== null && { endedAtMs: Number(row.ended_at_ms) }),
  };
}
