import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
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
