/**
 * Runs the benches one after the other: `npm run bench [-- compute policy-server ingest assembly
 * sidecar]`. Each measures against a baseline in the same run; the figures are ratios first.
 */
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";

const known = readdirSync(import.meta.dirname)
  .filter((name) => name.endsWith(".ts") && name !== "run.ts")
  .map((name) => name.slice(0, -".ts".length));
const wanted = process.argv.slice(2);
const unknown = wanted.filter((name) => !known.includes(name));
if (unknown.length > 0) {
  process.stderr.write(`no bench named ${unknown.join(", ")}; there are: ${known.join(", ")}\n`);
  process.exit(2);
}
for (const name of wanted.length > 0 ? wanted : known) {
  const file = `${import.meta.dirname}/${name}.ts`;
  process.stdout.write(`\n== ${name}\n`);
  const { status } = spawnSync(process.execPath, ["--import", "tsx", file], { stdio: "inherit" });
  if (status !== 0) process.exitCode = 1;
}
