import { type Kysely, type Migration, sql } from "kysely";

/** Times are milliseconds since the epoch; JSON columns hold text. */
export type RolloutTables = {
  rollout: {
    rollout_id: string;
    /** Order of creation. */
    seq: number;
    /** Order of becoming terminal; null before. */
    terminal_seq: number | null;
    group_id: string | null;
    mode: "train" | "eval";
    /** What it was made for: `train`, or the name of an evaluation. */
    purpose: string;
    task_id: string;
    input_json: string;
    metadata_json: string;
    state: string;
    /** The core's rollout, whole. */
    rollout_json: string;
    end_reason: string | null;
    reward: number | null;
    outcome_json: string | null;
    error_message: string | null;
    revision: number;
    created_at_ms: number;
    updated_at_ms: number;
  };
  attempt: {
    attempt_id: string;
    rollout_id: string;
    number: number;
    lease_owner: string;
    lease_expires_at_ms: number;
    pid: number | null;
    pid_start_time: string | null;
    directory: string | null;
    leased_at_ms: number;
    started_at_ms: number | null;
    ended_at_ms: number | null;
    end_reason: string | null;
    /** Finer than the end reason: `exit-code-3`, `verifier-crashed`. */
    detail: string | null;
    message: string | null;
    reward: number | null;
    grade_json: string | null;
  };
  rollout_group: {
    group_id: string;
    group_index: number;
    task_id: string;
    admitted_version: number;
    admitted_at_ms: number;
    state: "active" | "consumed" | "dropped";
    step_index: number | null;
  };
  step: {
    step_index: number;
    update_id: string;
    from_version: number;
    state: "updating" | "published";
    group_ids_json: string;
    metrics_json: string | null;
    started_at_ms: number;
    ended_at_ms: number | null;
  };
  run_fact: {
    name: string;
    value_json: string;
  };
};

export const rolloutMigrations: Readonly<Record<string, Migration>> = {
  "002-rollouts": { up: createRolloutTables },
};

/** The same statements run on SQLite and PostgreSQL. */
async function createRolloutTables(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable("rollout")
    .addColumn("rollout_id", "text", (c) => c.primaryKey())
    .addColumn("seq", "bigint", (c) => c.notNull())
    .addColumn("terminal_seq", "bigint")
    .addColumn("group_id", "text")
    .addColumn("mode", "text", (c) => c.notNull())
    .addColumn("purpose", "text", (c) => c.notNull())
    .addColumn("task_id", "text", (c) => c.notNull())
    .addColumn("input_json", "text", (c) => c.notNull())
    .addColumn("metadata_json", "text", (c) => c.notNull())
    .addColumn("state", "text", (c) => c.notNull())
    .addColumn("rollout_json", "text", (c) => c.notNull())
    .addColumn("end_reason", "text")
    .addColumn("reward", "double precision")
    .addColumn("outcome_json", "text")
    .addColumn("error_message", "text")
    .addColumn("revision", "integer", (c) => c.notNull())
    .addColumn("created_at_ms", "bigint", (c) => c.notNull())
    .addColumn("updated_at_ms", "bigint", (c) => c.notNull())
    .execute();
  const index = (name: string, table: string, columns: readonly string[]): Promise<void> =>
    db.schema
      .createIndex(name)
      .on(table)
      .columns([...columns])
      .execute();
  await index("rollout_by_state", "rollout", ["state", "seq"]);
  await index("rollout_by_group", "rollout", ["group_id"]);
  await index("rollout_by_purpose", "rollout", ["purpose", "seq"]);
  await index("rollout_by_terminal_seq", "rollout", ["terminal_seq"]);
  await index("rollout_by_seq", "rollout", ["seq"]);
  await db.schema
    .createTable("attempt")
    .addColumn("attempt_id", "text", (c) => c.primaryKey())
    .addColumn("rollout_id", "text", (c) => c.notNull())
    .addColumn("number", "integer", (c) => c.notNull())
    .addColumn("lease_owner", "text", (c) => c.notNull())
    .addColumn("lease_expires_at_ms", "bigint", (c) => c.notNull())
    .addColumn("pid", "integer")
    .addColumn("pid_start_time", "text")
    .addColumn("directory", "text")
    .addColumn("leased_at_ms", "bigint", (c) => c.notNull())
    .addColumn("started_at_ms", "bigint")
    .addColumn("ended_at_ms", "bigint")
    .addColumn("end_reason", "text")
    .addColumn("detail", "text")
    .addColumn("message", "text")
    .addColumn("reward", "double precision")
    .addColumn("grade_json", "text")
    .execute();
  await index("attempt_by_rollout", "attempt", ["rollout_id", "number"]);
  await sql`create index attempt_open on attempt (lease_expires_at_ms) where ended_at_ms is null`.execute(
    db,
  );
  await createStepTables(db, index);
}

async function createStepTables(
  db: Kysely<unknown>,
  index: (name: string, table: string, columns: readonly string[]) => Promise<void>,
): Promise<void> {
  await db.schema
    .createTable("rollout_group")
    .addColumn("group_id", "text", (c) => c.primaryKey())
    .addColumn("group_index", "integer", (c) => c.notNull())
    .addColumn("task_id", "text", (c) => c.notNull())
    .addColumn("admitted_version", "integer", (c) => c.notNull())
    .addColumn("admitted_at_ms", "bigint", (c) => c.notNull())
    .addColumn("state", "text", (c) => c.notNull())
    .addColumn("step_index", "integer")
    .execute();
  await index("rollout_group_by_state", "rollout_group", ["state", "group_index"]);
  await db.schema
    .createTable("step")
    .addColumn("step_index", "integer", (c) => c.primaryKey())
    .addColumn("update_id", "text", (c) => c.notNull().unique())
    .addColumn("from_version", "integer", (c) => c.notNull())
    .addColumn("state", "text", (c) => c.notNull())
    .addColumn("group_ids_json", "text", (c) => c.notNull())
    .addColumn("metrics_json", "text")
    .addColumn("started_at_ms", "bigint", (c) => c.notNull())
    .addColumn("ended_at_ms", "bigint")
    .execute();
  await db.schema
    .createTable("run_fact")
    .addColumn("name", "text", (c) => c.primaryKey())
    .addColumn("value_json", "text", (c) => c.notNull())
    .execute();
}
