import { closeSync, mkdirSync, openSync } from "node:fs";
import { dirname } from "node:path";
import SqliteDatabase from "better-sqlite3";
import {
  Kysely,
  type SqliteDatabase as KyselySqlite,
  type Migration,
  Migrator,
  SqliteAdapter,
  SqliteDialect,
} from "kysely";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { sleep } from "../../runtime/sleep.ts";

/**
 * One file for the whole controller. Each store names its own tables with
 * `database.withTables<ItsTables>()`.
 */
export type Database = Kysely<Record<never, never>>;

export interface DatabaseOptions {
  /** Path of the SQLite file; `:memory:` for tests. */
  readonly path: string;
  /**
   * `process` (default): a commit survives kill -9 of the process, and at a power loss the last
   * commits may be gone (SQLite WAL with synchronous=NORMAL; the file stays consistent).
   * `power`: a commit also survives a power loss, at the price of one fsync each (synchronous=FULL).
   */
  readonly durability?: "process" | "power";
  /** By name, run in the order of the names: `001-…`; each store brings its own list. */
  readonly migrations: Readonly<Record<string, Migration>>;
}

const maxMigrationTries = 10;
const migrationRetryMs = 50;

/** Opens (and makes) the database and brings its tables up to date. Close with `destroy()`. */
export async function openDatabase(options: DatabaseOptions): Promise<Database> {
  const { path, durability = "process", migrations } = options;
  const sqlite = openFile(path, durability);
  const database: Database = new Kysely({
    dialect: new AtomicMigrationDialect({ database: keepStatements(sqlite) }),
  });
  const migrator = new Migrator({
    db: database,
    provider: { getMigrations: () => Promise.resolve({ ...migrations }) },
    // Stores add migrations independently of each other.
    allowUnorderedMigrations: true,
  });
  let { error } = await migrator.migrateToLatest();
  // Kysely does not lock SQLite against a second process that opens the same new file: one of them
  // then finds tables that it was about to make, and all done when it looks again.
  for (let tries = 1; error !== undefined && tries < maxMigrationTries; tries += 1) {
    await sleep(migrationRetryMs);
    ({ error } = await migrator.migrateToLatest());
  }
  if (error !== undefined) {
    await database.destroy();
    throw unusable(path, error);
  }
  return database;
}

/**
 * SQLite can roll back changes of tables, which Kysely's adapter does not say: with this one all
 * migrations together are one transaction, so that a kill or a full disk leaves all or nothing.
 */
class TransactionalSqliteAdapter extends SqliteAdapter {
  override get supportsTransactionalDdl(): boolean {
    return true;
  }
}

class AtomicMigrationDialect extends SqliteDialect {
  override createAdapter(): SqliteAdapter {
    return new TransactionalSqliteAdapter();
  }
}

const statementsKept = 256;

/**
 * Kysely prepares each query anew, which costs more than most of ours do. Here a statement is
 * prepared once and kept; the one that was used longest ago makes room.
 */
function keepStatements(sqlite: SqliteDatabase.Database): KyselySqlite {
  const kept = new Map<string, SqliteDatabase.Statement>();
  return {
    prepare: (sql: string) => {
      const statement = kept.get(sql) ?? sqlite.prepare(sql);
      kept.delete(sql);
      kept.set(sql, statement);
      if (kept.size > statementsKept) kept.delete(kept.keys().next().value as string);
      return statement;
    },
    close: () => sqlite.close(),
  };
}

function openFile(path: string, durability: "process" | "power"): SqliteDatabase.Database {
  let sqlite: SqliteDatabase.Database | undefined;
  try {
    if (path !== ":memory:") {
      mkdirSync(dirname(path), { recursive: true });
      // Ids and text are for those who may read the run. SQLite gives the files beside it its mode.
      closeSync(openSync(path, "a", 0o600));
    }
    sqlite = new SqliteDatabase(path);
    sqlite.pragma("busy_timeout = 10000");
    sqlite.pragma("journal_mode = WAL");
    sqlite.pragma(`synchronous = ${durability === "power" ? "FULL" : "NORMAL"}`);
    sqlite.pragma("foreign_keys = ON");
    return sqlite;
  } catch (cause) {
    sqlite?.close();
    throw unusable(path, cause);
  }
}

function unusable(path: string, cause: unknown): OutriggerError {
  const problem = cause instanceof Error ? cause.message : String(cause);
  return new OutriggerError("database-unusable", `cannot open the database ${path}: ${problem}`, {
    origin: "user",
    hint: "Check that the directory is writable, and that the file was made by this or an older version.",
    cause,
  });
}
