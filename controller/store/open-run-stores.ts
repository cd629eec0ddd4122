import { join } from "node:path";
import { type CallStore, openCallStore } from "./call-store.ts";
import { migrations } from "./migrations.ts";
import { openDatabase } from "./open-database.ts";
import { createRolloutStore, type RolloutStore } from "./rollout-store.ts";
import { type RolloutTables, rolloutMigrations } from "./rollout-tables.ts";
import { createStepStore, type StepStore } from "./step-store.ts";

export interface RunStores {
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  readonly calls: CallStore;
  close(): Promise<void>;
}

/** The stores of a run's directory, one SQLite file; several processes may have it open. */
export async function openRunStores(directory: string): Promise<RunStores> {
  const database = await openDatabase({
    path: join(directory, "run.db"),
    migrations: { ...migrations, ...rolloutMigrations },
  });
  const tables = database.withTables<RolloutTables>();
  return {
    rollouts: createRolloutStore(tables),
    steps: createStepStore(tables),
    calls: await openCallStore(database),
    close: () => database.destroy(),
  };
}
