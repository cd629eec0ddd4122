import { execFileSync } from "node:child_process";
import process from "node:process";
import { expect, it } from "vitest";

/**
 * Allocates for half a second, with much that survives for a while. Prints the MiB of the young
 * generation when it was first 8 or more, which is when it is bounded, and the most after that.
 */
const busy = (bounds: boolean): string => `
import { getHeapSpaceStatistics } from "node:v8";
import { boundHeap } from ${JSON.stringify(new URL("bound-heap.ts", import.meta.url).href)};
const youngMiB = () =>
  getHeapSpaceStatistics().find((s) => s.space_name === "new_space").space_size / 2 ** 20;
let kept = [];
let first = 0;
let most = 0;
for (let untilMs = Infinity; performance.now() < untilMs; ) {
  for (let i = 0; i < 200; i += 1) kept.push({ i, list: [i] });
  if (kept.length > 20_000) kept = [];
  most = Math.max(most, youngMiB());
  if (first > 0 || most < 8) continue;
  first = most;
  untilMs = performance.now() + 500;
  if (${bounds}) boundHeap();
}
process.stdout.write(JSON.stringify({ first, most }));`;

function youngMiB(bounds: boolean): { readonly first: number; readonly most: number } {
  const args = ["--import", "tsx", "--input-type=module", "-e", busy(bounds)];
  return JSON.parse(execFileSync(process.execPath, args, { encoding: "utf8" }));
}

it("the young generation stays small where V8 would let it grow; on Node 20 it grows no further", () => {
  const free = youngMiB(false).most;
  const { first, most } = youngMiB(true);
  expect(free).toBeGreaterThanOrEqual(32);
  expect(most).toBeLessThanOrEqual(free / 2);
  if (process.versions.node.startsWith("20.")) expect(most).toBe(first);
}, 30_000);
