import { type Kysely, type Migration, sql } from "kysely";

/** Tables of the call store. Blobs are protobuf messages of `outrigger/v1/record.proto`. */
export const callStoreMigrations: Readonly<Record<string, Migration>> = {
  "001-calls": {
    up: async (db: Kysely<unknown>) => {
      await db.schema
        .createTable("store_identity")
        .addColumn("store_id", "text", (c) => c.primaryKey())
        .execute();
      await db.schema
        .createTable("spool")
        .addColumn("spool_id", "text", (c) => c.primaryKey())
        .addColumn("acked_seq", "integer", (c) => c.notNull())
        .execute();
      await db.schema
        .createTable("request")
        // Order of arrival: a record's base always comes before it.
        .addColumn("ordinal", "integer", (c) => c.primaryKey().autoIncrement())
        .addColumn("request_id", "text", (c) => c.notNull().unique())
        .addColumn("rollout_id", "text", (c) => c.notNull())
        .addColumn("attempt_id", "text", (c) => c.notNull())
        .addColumn("received_at_ms", "real", (c) => c.notNull())
        .addColumn("outcome", "text", (c) => c.notNull())
        .addColumn("complete_count", "integer", (c) => c.notNull())
        .addColumn("incomplete_reasons", "text", (c) => c.notNull())
        .addColumn("record", "blob", (c) => c.notNull())
        .addColumn("request_text", "blob")
        .addColumn("response_text", "blob")
        .execute();
      await db.schema
        .createIndex("request_by_attempt")
        .on("request")
        .columns(["rollout_id", "attempt_id", "ordinal"])
        .execute();
      await db.schema
        .createTable("event")
        .addColumn("ordinal", "integer", (c) => c.primaryKey().autoIncrement())
        .addColumn("event_id", "text", (c) => c.notNull().unique())
        .addColumn("rollout_id", "text", (c) => c.notNull())
        .addColumn("attempt_id", "text", (c) => c.notNull())
        .addColumn("event_type", "text", (c) => c.notNull())
        .addColumn("data_json", "text", (c) => c.notNull())
        .addColumn("at_ms", "real", (c) => c.notNull())
        .execute();
      await db.schema
        .createIndex("event_by_attempt")
        .on("event")
        .columns(["rollout_id", "attempt_id", "ordinal"])
        .execute();
      await sql`insert into store_identity (store_id) values (lower(hex(randomblob(16))))`.execute(
        db,
      );
    },
  },
};
