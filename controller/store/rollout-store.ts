import type { Kysely, Selectable, Transaction } from "kysely";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { AttemptEndReason } from "../../core/rollouts/attempt-end-reason.ts";
import {
  type FailurePolicy,
  type RolloutOutcome,
  resolveOutcome,
} from "../../core/rollouts/failure-policy.ts";
import {
  isTerminal,
  newRollout,
  nextRolloutState,
  type Rollout,
  type RolloutEvent,
  type RolloutState,
  type RolloutTransition,
} from "../../core/rollouts/rollout-state.ts";
import type { RolloutTables } from "./rollout-tables.ts";

export interface NewRollout {
  readonly rolloutId: string;
  readonly groupId?: string;
  readonly mode: "train" | "eval";
  readonly purpose: string;
  readonly taskId: string;
  readonly input: Readonly<Record<string, unknown>>;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

export interface StoredRollout extends NewRollout {
  readonly seq: number;
  readonly terminalSeq?: number;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly state: RolloutState;
  readonly rollout: Rollout;
  /** Of the last attempt that ended. */
  readonly endReason?: AttemptEndReason;
  readonly reward?: number;
  /** What it contributes to training; set when it becomes terminal through an attempt. */
  readonly outcome?: RolloutOutcome;
  readonly errorMessage?: string;
  /** Starts at 1, grows by 1 with every change. */
  readonly revision: number;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

export interface StoredAttempt {
  readonly attemptId: string;
  readonly rolloutId: string;
  readonly number: number;
  readonly leaseOwner: string;
  readonly leaseExpiresAtMs: number;
  readonly process?: { readonly pid: number; readonly startTime: string };
  readonly directory?: string;
  readonly leasedAtMs: number;
  readonly startedAtMs?: number;
  readonly endedAtMs?: number;
  readonly endReason?: AttemptEndReason;
  readonly detail?: string;
  readonly message?: string;
  readonly reward?: number;
  readonly grade?: unknown;
}

/** What is known about an attempt's end beside its reason. */
export interface AttemptEndDetails {
  readonly detail?: string;
  readonly message?: string;
  /** What the grader said; absent when it said nothing. */
  readonly reward?: number;
  readonly grade?: unknown;
}

export interface Lease {
  readonly owner: string;
  readonly expiresAtMs: number;
  readonly directory?: string;
}

export interface RolloutFilter {
  readonly states?: readonly RolloutState[];
  readonly purpose?: string;
  readonly groupId?: string;
  /** Only rollouts created after this `seq`. */
  readonly afterSeq?: number;
  readonly limit?: number;
}

/**
 * Rollouts and their attempts, durable. Every change is one transaction around the core's
 * `nextRolloutState`, so that two callers can never both move the same rollout.
 */
export interface RolloutStore {
  /** Creates what is not known yet; a known id is returned as it is. In the order given. */
  create(rollouts: readonly NewRollout[], nowMs: number): Promise<readonly StoredRollout[]>;
  get(rolloutId: string): Promise<StoredRollout | undefined>;
  list(filter: RolloutFilter): Promise<readonly StoredRollout[]>;
  /** Terminal rollouts in the order in which they became so. */
  listTerminal(afterTerminalSeq: number, limit: number): Promise<readonly StoredRollout[]>;
  lease(
    rolloutId: string,
    attemptId: string,
    lease: Lease,
    policy: FailurePolicy,
    nowMs: number,
  ): Promise<RolloutTransition>;
  markStarted(
    attemptId: string,
    process: { readonly pid: number; readonly startTime: string },
    nowMs: number,
  ): Promise<void>;
  end(
    rolloutId: string,
    event: Exclude<RolloutEvent, { readonly type: "attempt-leased" | "attempt-started" }>,
    details: AttemptEndDetails,
    policy: FailurePolicy,
    nowMs: number,
  ): Promise<RolloutTransition>;
  renewLeases(owner: string, expiresAtMs: number): Promise<void>;
  attempts(rolloutId: string): Promise<readonly StoredAttempt[]>;
  /** Attempts that have not ended. */
  openAttempts(): Promise<readonly StoredAttempt[]>;
  /** Replaces a rollout's metadata; `asChange` makes it a revision of its own. */
  annotate(
    rolloutId: string,
    metadata: Readonly<Record<string, unknown>>,
    asChange: boolean,
    nowMs: number,
  ): Promise<void>;
  /** How many rollouts ever became terminal, removed ones included: the last `terminalSeq`. */
  terminalCount(): Promise<number>;
  countByState(purpose?: string): Promise<Readonly<Partial<Record<RolloutState, number>>>>;
  /** Terminal rollouts by the end reason of their last attempt (`rejected` without one). */
  countByOutcome(): Promise<Readonly<Record<string, number>>>;
  remove(rolloutId: string): Promise<void>;
}

type Db = Kysely<RolloutTables>;
type RolloutRow = Selectable<RolloutTables["rollout"]>;
type AttemptRow = Selectable<RolloutTables["attempt"]>;

export function createRolloutStore(db: Db): RolloutStore {
  return {
    create: (rollouts, nowMs) =>
      db.transaction().execute((tx) => createRollouts(tx, rollouts, nowMs)),
    get: async (rolloutId) => {
      const row = await rowOf(db, rolloutId);
      return row && toRollout(row);
    },
    list: (filter) => listRollouts(db, filter),
    listTerminal: async (after, limit) => {
      const rows = await db
        .selectFrom("rollout")
        .selectAll()
        .where("terminal_seq", ">", after)
        .orderBy("terminal_seq")
        .limit(limit)
        .execute();
      return rows.map(toRollout);
    },
    lease: (rolloutId, attemptId, lease, policy, nowMs) =>
      db.transaction().execute(async (tx) => {
        const event: RolloutEvent = { type: "attempt-leased", attemptId };
        const transition = await applyEvent(tx, rolloutId, event, {}, policy, nowMs);
        if (transition.isChanged) await insertAttempt(tx, rolloutId, attemptId, lease, nowMs);
        return transition;
      }),
    markStarted: async (attemptId, process, nowMs) => {
      await db
        .updateTable("attempt")
        .set({ pid: process.pid, pid_start_time: process.startTime, started_at_ms: nowMs })
        .where("attempt_id", "=", attemptId)
        .where("ended_at_ms", "is", null)
        .execute();
    },
    end: (rolloutId, event, details, policy, nowMs) =>
      db.transaction().execute(async (tx) => {
        const transition = await applyEvent(tx, rolloutId, event, details, policy, nowMs);
        if (transition.isChanged) await endAttempt(tx, event, details, nowMs);
        return transition;
      }),
    renewLeases: async (owner, expiresAtMs) => {
      await db
        .updateTable("attempt")
        .set({ lease_expires_at_ms: expiresAtMs })
        .where("lease_owner", "=", owner)
        .where("ended_at_ms", "is", null)
        .execute();
    },
    attempts: async (rolloutId) => {
      const rows = await db
        .selectFrom("attempt")
        .selectAll()
        .where("rollout_id", "=", rolloutId)
        .orderBy("number")
        .execute();
      return rows.map(toAttempt);
    },
    openAttempts: async () => {
      const rows = await db
        .selectFrom("attempt")
        .selectAll()
        .where("ended_at_ms", "is", null)
        .execute();
      return rows.map(toAttempt);
    },
    annotate: async (rolloutId, metadata, asChange, nowMs) => {
      await db
        .updateTable("rollout")
        .set((e) => ({
          metadata_json: JSON.stringify(metadata),
          ...(asChange && { revision: e("revision", "+", 1), updated_at_ms: nowMs }),
        }))
        .where("rollout_id", "=", rolloutId)
        .execute();
    },
    terminalCount: async () => (await nextTerminalSeq(db)) - 1,
    countByState: async (purpose) => {
      let query = db
        .selectFrom("rollout")
        .select(["state", ({ fn }) => fn.countAll<number>().as("count")])
        .groupBy("state");
      if (purpose !== undefined) query = query.where("purpose", "=", purpose);
      const rows = await query.execute();
      return Object.fromEntries(rows.map((row) => [row.state, Number(row.count)]));
    },
    countByOutcome: () => countByOutcome(db),
    remove: (rolloutId) =>
      db.transaction().execute(async (tx) => {
        // Readers page by `terminalSeq`: the number of a removed rollout is never given again.
        const last = (await nextTerminalSeq(tx)) - 1;
        if (last > 0) await keepTerminalSeq(tx, last);
        await tx.deleteFrom("attempt").where("rollout_id", "=", rolloutId).execute();
        await tx.deleteFrom("rollout").where("rollout_id", "=", rolloutId).execute();
      }),
  };
}

function rowOf(db: Db, rolloutId: string): Promise<RolloutRow | undefined> {
  return db
    .selectFrom("rollout")
    .selectAll()
    .where("rollout_id", "=", rolloutId)
    .executeTakeFirst();
}

async function lastSeq(db: Db, column: "seq" | "terminal_seq"): Promise<number> {
  const row = await db
    .selectFrom("rollout")
    .select(({ fn }) => fn.max<number | null>(column).as("last"))
    .executeTakeFirst();
  return Number(row?.last ?? 0);
}

const terminalSeqFact = "removed-terminal-seq";

async function nextTerminalSeq(db: Db): Promise<number> {
  const kept = await db
    .selectFrom("run_fact")
    .select("value_json")
    .where("name", "=", terminalSeqFact)
    .executeTakeFirst();
  return Math.max(await lastSeq(db, "terminal_seq"), Number(kept?.value_json ?? 0)) + 1;
}

async function keepTerminalSeq(db: Db, last: number): Promise<void> {
  const value_json = String(last);
  await db
    .insertInto("run_fact")
    .values({ name: terminalSeqFact, value_json })
    .onConflict((c) => c.column("name").doUpdateSet({ value_json }))
    .execute();
}

/** Inside the caller's transaction, so that a group and its rollouts are made together. */
export async function createRollouts(
  tx: Transaction<RolloutTables>,
  rollouts: readonly NewRollout[],
  nowMs: number,
): Promise<readonly StoredRollout[]> {
  let seq = (await lastSeq(tx, "seq")) + 1;
  const stored: StoredRollout[] = [];
  for (const wanted of rollouts) {
    const known = await rowOf(tx, wanted.rolloutId);
    if (known !== undefined) {
      stored.push(toRollout(known));
      continue;
    }
    const rollout = newRollout(wanted.rolloutId);
    const row: RolloutRow = {
      rollout_id: wanted.rolloutId,
      seq: seq++,
      terminal_seq: null,
      group_id: wanted.groupId ?? null,
      mode: wanted.mode,
      purpose: wanted.purpose,
      task_id: wanted.taskId,
      input_json: JSON.stringify(wanted.input),
      metadata_json: JSON.stringify(wanted.metadata ?? {}),
      state: rollout.state,
      rollout_json: JSON.stringify(rollout),
      end_reason: null,
      reward: null,
      outcome_json: null,
      error_message: null,
      revision: 1,
      created_at_ms: nowMs,
      updated_at_ms: nowMs,
    };
    await tx.insertInto("rollout").values(row).execute();
    stored.push(toRollout(row));
  }
  return stored;
}

async function listRollouts(db: Db, filter: RolloutFilter): Promise<readonly StoredRollout[]> {
  let query = db.selectFrom("rollout").selectAll().orderBy("seq");
  if (filter.states !== undefined) query = query.where("state", "in", [...filter.states]);
  if (filter.purpose !== undefined) query = query.where("purpose", "=", filter.purpose);
  if (filter.groupId !== undefined) query = query.where("group_id", "=", filter.groupId);
  if (filter.afterSeq !== undefined) query = query.where("seq", ">", filter.afterSeq);
  if (filter.limit !== undefined) query = query.limit(filter.limit);
  return (await query.execute()).map(toRollout);
}

/** The one place where a rollout changes. */
async function applyEvent(
  tx: Transaction<RolloutTables>,
  rolloutId: string,
  event: RolloutEvent,
  details: AttemptEndDetails,
  policy: FailurePolicy,
  nowMs: number,
): Promise<RolloutTransition> {
  const row = await rowOf(tx, rolloutId);
  if (row === undefined) {
    throw new OutriggerError("rollout-unknown", `there is no rollout ${rolloutId}`, {
      origin: "user",
      hint: "`outrigger rollouts list` shows the ids.",
    });
  }
  const before = JSON.parse(row.rollout_json) as Rollout;
  const transition = nextRolloutState(before, event, policy);
  if (!transition.isChanged) return transition;
  const { rollout } = transition;
  const reason = endReasonOf(event);
  const isOver = isTerminal(rollout.state);
  const outcome =
    isOver && reason !== undefined ? resolveOutcome(reason, details.reward, policy) : undefined;
  await tx
    .updateTable("rollout")
    .set({
      state: rollout.state,
      rollout_json: JSON.stringify(rollout),
      revision: row.revision + 1,
      updated_at_ms: nowMs,
      ...(reason !== undefined && {
        end_reason: reason,
        error_message: details.message ?? null,
      }),
      ...(isOver && { terminal_seq: await nextTerminalSeq(tx) }),
      ...(outcome !== undefined && {
        reward: outcome.reward ?? null,
        outcome_json: JSON.stringify(outcome),
      }),
    })
    .where("rollout_id", "=", rolloutId)
    .execute();
  return transition;
}

function endReasonOf(event: RolloutEvent): AttemptEndReason | undefined {
  if (event.type === "attempt-ended") return event.reason;
  return event.type === "lease-expired" ? "infra-error" : undefined;
}

async function insertAttempt(
  tx: Transaction<RolloutTables>,
  rolloutId: string,
  attemptId: string,
  lease: Lease,
  nowMs: number,
): Promise<void> {
  const { count } = await tx
    .selectFrom("attempt")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("rollout_id", "=", rolloutId)
    .executeTakeFirstOrThrow();
  await tx
    .insertInto("attempt")
    .values({
      attempt_id: attemptId,
      rollout_id: rolloutId,
      number: Number(count) + 1,
      lease_owner: lease.owner,
      lease_expires_at_ms: lease.expiresAtMs,
      directory: lease.directory ?? null,
      leased_at_ms: nowMs,
    })
    .execute();
}

async function endAttempt(
  tx: Transaction<RolloutTables>,
  event: RolloutEvent,
  details: AttemptEndDetails,
  nowMs: number,
): Promise<void> {
  const reason = endReasonOf(event);
  if (reason === undefined || !("attemptId" in event)) return;
  await tx
    .updateTable("attempt")
    .set({
      ended_at_ms: nowMs,
      end_reason: reason,
      detail: details.detail ?? (event.type === "lease-expired" ? "lease-expired" : null),
      message: details.message ?? null,
      reward: details.reward ?? null,
      grade_json: details.grade === undefined ? null : JSON.stringify(details.grade),
    })
    .where("attempt_id", "=", event.attemptId)
    .execute();
}

async function countByOutcome(db: Db): Promise<Readonly<Record<string, number>>> {
  const rows = await db
    .selectFrom("rollout")
    .select(["end_reason", ({ fn }) => fn.countAll<number>().as("count")])
    .where("terminal_seq", "is not", null)
    .groupBy("end_reason")
    .execute();
  return Object.fromEntries(rows.map((row) => [row.end_reason ?? "rejected", Number(row.count)]));
}

function toRollout(row: RolloutRow): StoredRollout {
  return {
    rolloutId: row.rollout_id,
    seq: Number(row.seq),
    ...(row.terminal_seq !== null && { terminalSeq: Number(row.terminal_seq) }),
    ...(row.group_id !== null && { groupId: row.group_id }),
    mode: row.mode,
    purpose: row.purpose,
    taskId: row.task_id,
    input: JSON.parse(row.input_json) as Record<string, unknown>,
    metadata: JSON.parse(row.metadata_json) as Record<string, unknown>,
    state: row.state as RolloutState,
    rollout: JSON.parse(row.rollout_json) as Rollout,
    ...(row.end_reason !== null && { endReason: row.end_reason as AttemptEndReason }),
    ...(row.reward !== null && { reward: row.reward }),
    ...(row.outcome_json !== null && { outcome: JSON.parse(row.outcome_json) as RolloutOutcome }),
    ...(row.error_message !== null && { errorMessage: row.error_message }),
    revision: row.revision,
    createdAtMs: Number(row.created_at_ms),
    updatedAtMs: Number(row.updated_at_ms),
  };
}

function toAttempt(row: AttemptRow): StoredAttempt {
  return {
    attemptId: row.attempt_id,
    rolloutId: row.rollout_id,
    number: row.number,
    leaseOwner: row.lease_owner,
    leaseExpiresAtMs: Number(row.lease_expires_at_ms),
    ...(row.pid !== null && { process: { pid: row.pid, startTime: row.pid_start_time ?? "" } }),
    ...(row.directory !== null && { directory: row.directory }),
    leasedAtMs: Number(row.leased_at_ms),
    ...(row.started_at_ms !== null && { startedAtMs: Number(row.started_at_ms) }),
    ...(row.ended_at_ms !== null && { endedAtMs: Number(row.ended_at_ms) }),
    ...(row.end_reason !== null && { endReason: row.end_reason as AttemptEndReason }),
    ...(row.detail !== null && { detail: row.detail }),
    ...(row.message !== null && { message: row.message }),
    ...(row.reward !== null && { reward: row.reward }),
    ...(row.grade_json !== null && { grade: JSON.parse(row.grade_json) as unknown }),
  };
}
