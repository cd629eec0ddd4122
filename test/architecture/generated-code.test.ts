import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { expect, it } from "vitest";
import { experimentJsonSchema } from "../../controller/experiment/experiment-json-schema.ts";

const root = resolve(import.meta.dirname, "../..");

function readTree(folder: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .sort()
      .map((path) => [path.slice(folder.length), readFileSync(path, "utf8")]),
  );
}

it("proto/gen is what buf generates from the protos, and buf lint is clean", () => {
  const work = mkdtempSync(join(tmpdir(), "outrigger-buf-"));
  try {
    cpSync(join(root, "buf.yaml"), join(work, "buf.yaml"));
    cpSync(join(root, "buf.gen.yaml"), join(work, "buf.gen.yaml"));
    cpSync(join(root, "proto"), join(work, "proto"), {
      recursive: true,
      filter: (path) => !path.startsWith(join(root, "proto", "gen")),
    });
    const env = {
      ...process.env,
      PATH: `${join(root, "node_modules/.bin")}:${process.env["PATH"]}`,
    };
    execFileSync("buf", ["lint"], { cwd: work, env });
    execFileSync("buf", ["generate"], { cwd: work, env });
    expect(readTree(join(root, "proto/gen"))).toEqual(readTree(join(work, "proto/gen")));
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
});

it("schema/experiment.schema.json is what the experiment schema gives", () => {
  const file = join(root, "schema/experiment.schema.json");
  expect(readFileSync(file, "utf8"), "run: npm run generate").toBe(experimentJsonSchema());
});
