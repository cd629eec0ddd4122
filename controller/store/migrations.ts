import type { Migration } from "kysely";
import { callStoreMigrations } from "./call-store-migrations.ts";

/** Every table of the controller; a store adds its own list here. Names order the migrations. */
export const migrations: Readonly<Record<string, Migration>> = {
  ...callStoreMigrations,
};
