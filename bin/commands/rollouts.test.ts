import { expect, it } from "vitest";
import { describeCalls } from "./rollouts.ts";

it.each([
  [{}, "2 complete, 0 incomplete"],
  [{ "ids-missing": 2, aborted: 1 }, "2 complete, 3 incomplete (ids-missing 2, aborted 1)"],
])("says how many calls are complete: %j", (incompleteCalls, expected) => {
  expect(describeCalls({ completeCalls: 2, incompleteCalls })).toBe(expected);
});
