import { mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Kysely, type Migration, sql } from "kysely";
import { afterAll, expect, it } from "vitest";
import { openDatabase } from "./open-database.ts";
import { openRunStores } from "./open-run-stores.ts";

const directory = mkdtempSync(join(tmpdir(), "outrigger-open-database-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

it("who looks at a run while its tables are being made harms neither", async () => {
  const opened = await Promise.all(Array.from({ length: 6 }, () => openRunStores(directory)));
  for (const stores of opened) {
    expect(await stores.rollouts.list({})).toEqual([]);
    await stores.close();
  }
});

it("nobody but its owner may read the file, nor those that SQLite keeps beside it", async () => {
  const folder = join(directory, "private");
  const stores = await openRunStores(folder);
  const names = readdirSync(folder).filter((name) => name.startsWith("run.db"));
  expect(names.length).toBeGreaterThan(1);
  for (const name of names) expect(statSync(join(folder, name)).mode & 0o077).toBe(0);
  await stores.close();
});

it("a migration that fails half way leaves nothing, and the next open works", async () => {
  const path = join(directory, "half", "run.db");
  const create = async (db: Kysely<unknown>, table: string): Promise<void> =>
    db.schema.createTable(table).addColumn("id", "integer").execute();
  const first: Migration = { up: (db) => create(db as Kysely<unknown>, "one") };
  const failing: Migration = {
    up: async (db) => {
      await create(db as Kysely<unknown>, "two");
      throw new Error("the disk is full");
    },
  };
  await expect(
    openDatabase({ path, migrations: { "001-one": first, "002-two": failing } }),
  ).rejects.toThrow("the disk is full");
  const second: Migration = { up: (db) => create(db as Kysely<unknown>, "two") };
  const database = await openDatabase({
    path,
    migrations: { "001-one": first, "002-two": second },
  });
  const { rows } = await sql`select name from sqlite_master where name in ('one', 'two')`.execute(
    database,
  );
  expect(rows).toHaveLength(2);
  await database.destroy();
});
