import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type CallStore, openCallStore } from "../../controller/store/call-store.ts";
import { migrations } from "../../controller/store/migrations.ts";
import { type Database, openDatabase } from "../../controller/store/open-database.ts";
import { createRolloutStore, type RolloutStore } from "../../controller/store/rollout-store.ts";
import { type RolloutTables, rolloutMigrations } from "../../controller/store/rollout-tables.ts";
import { defaultFailurePolicy } from "../../core/rollouts/failure-policy.ts";

/** What a trainer outside needs of the stores: it annotates, pages and removes. */
describe("stores under a trainer outside", () => {
  let database: Database;
  let rollouts: RolloutStore;
  let calls: CallStore;
  beforeEach(async () => {
    database = await openDatabase({
      path: ":memory:",
      migrations: { ...migrations, ...rolloutMigrations },
    });
    rollouts = createRolloutStore(database.withTables<RolloutTables>());
    calls = await openCallStore(database);
  });
  afterEach(() => database.destroy());

  const create = (...ids: string[]) =>
    rollouts.create(
      ids.map((rolloutId) => ({
        rolloutId,
        mode: "train" as const,
        purpose: "agl",
        taskId: "t",
        input: {},
      })),
      1,
    );
  const cancel = (id: string) =>
    rollouts.end(id, { type: "cancel-requested" }, {}, defaultFailurePolicy, 2);

  it("an annotation replaces the metadata; it is a revision only when it is meant as one", async () => {
    await create("a", "b");
    await rollouts.annotate("a", { x: 1 }, false, 5);
    expect(await rollouts.get("a")).toMatchObject({
      metadata: { x: 1 },
      revision: 1,
      updatedAtMs: 1,
    });
    await rollouts.annotate("a", { y: 2 }, true, 6);
    expect(await rollouts.get("a")).toMatchObject({
      metadata: { y: 2 },
      revision: 2,
      updatedAtMs: 6,
    });
    expect(await rollouts.get("b")).toMatchObject({ metadata: {}, revision: 1 });
  });

  it("a removed rollout's place among the terminal ones is never given again", async () => {
    await create("a", "b", "c");
    await cancel("a");
    await cancel("b");
    await rollouts.remove("b");
    await rollouts.remove("a");
    expect(await rollouts.terminalCount()).toBe(2);
    await cancel("c");
    expect(await rollouts.listTerminal(2, 10)).toMatchObject([{ rolloutId: "c", terminalSeq: 3 }]);
    await rollouts.remove("c");
    await create("a");
    await cancel("a");
    expect(await rollouts.get("a")).toMatchObject({ terminalSeq: 4 });
    expect(await rollouts.terminalCount()).toBe(4);
  });

  it("attempts come in the order of their first record, and go with their rollout", async () => {
    const event = (eventId: string, rolloutId: string, attemptId: string, atMs: number) => ({
      eventId,
      rolloutId,
      attemptId,
      eventType: "note",
      dataJson: "{}",
      atMs,
    });
    await calls.appendEvents([
      event("1", "a", "a.2", 30),
      event("2", "a", "a.1", 10),
      event("3", "a", "a.2", 5),
      event("4", "b", "b.1", 1),
    ]);
    expect(await calls.attemptsWithRecords("a")).toEqual(["a.2", "a.1"]);
    await calls.removeRollout("a");
    expect(await calls.attemptsWithRecords("a")).toEqual([]);
    expect(await calls.eventsOfAttempt("a", "a.1")).toEqual([]);
    expect(await calls.attemptsWithRecords("b")).toEqual(["b.1"]);
  });
});
