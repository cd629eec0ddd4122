import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Sample } from "../sample.ts";
import { encodeSample } from "../samples-jsonl/encode-sample.ts";
import { assembleAttempt } from "./assemble-attempt.ts";
import { findViolations } from "./testing/find-violations.ts";
import { mergeConsecutive } from "./testing/merge-consecutive.ts";
import { plantedBugs } from "./testing/planted-bugs.ts";
import { seededRandom, shuffled } from "./testing/random.ts";
import {
  type AttemptHabits,
  plainHabits,
  randomAttempt,
  type TrueSampling,
  wildHabits,
} from "./testing/random-attempt.ts";

const seeds = fc.integer({ min: 0, max: 2 ** 31 });

/** No call is lost and found again: with few ids, one call's context looks like another's. */
const crowdedHabits: AttemptHabits = {
  ...wildHabits,
  vocabulary: 2,
  retry: 0,
  supersede: 0,
  unproven: 0,
  replay: 0,
  sideCall: 0,
};

describe("invariant 3: each sampled token is trained exactly once, in its own context", () => {
  it.each([
    ["everything at once", wildHabits, 2000],
    ["few distinct ids", crowdedHabits, 500],
    ["four interleaved subagents", { ...plainHabits, threads: 4, turns: 40 }, 100],
    ["compaction", { ...plainHabits, compaction: 0.3 }, 100],
    ["branches", { ...plainHabits, branch: 0.5, turns: 20 }, 100],
    ["retries", { ...plainHabits, retry: 0.3, replay: 0.3, supersede: 0.3 }, 100],
    ["orphans and incomplete calls", { ...plainHabits, incomplete: 0.5, sideCall: 0.2 }, 100],
    ["parallel calls and n > 1", { ...plainHabits, parallel: 0.5, choices: 0.5 }, 100],
    ["thinking stripped from history", { ...plainHabits, strippedThinking: 1 }, 100],
    ["200 turns", { ...plainHabits, turns: 200 }, 5],
  ] as const)("%s", (_, habits, numRuns) => {
    fc.assert(
      fc.property(seeds, (seed) => {
        const { records, truth } = randomAttempt(seed, habits);
        const { samples, report } = assembleAttempt(records);
        expect(findViolations(truth, samples)).toEqual([]);
        const { sampled, trained, lost } = report.tokens;
        expect(trained + Object.values(lost).reduce((a, b) => a + b)).toBe(sampled);
        const { records: read, duplicates, replays, samplings } = report.calls;
        expect(duplicates + replays + samplings).toBe(read);
      }),
      { numRuns },
    );
  });

  it("whatever order the records arrive in", () => {
    fc.assert(
      fc.property(seeds, fc.constantFrom(wildHabits, crowdedHabits), (seed, habits) => {
        const { records } = randomAttempt(seed, habits);
        const mixed = shuffled(records, seededRandom(seed + 1));
        const expected = assembleAttempt(records);
        const actual = assembleAttempt(mixed);
        expect(actual.samples.map(encodeSample)).toEqual(expected.samples.map(encodeSample));
        expect(actual.report).toEqual(expected.report);
      }),
      { numRuns: 300 },
    );
  });

  it.each(["truncate", "drop-call"] as const)("up to a length limit: %s", (overLength) => {
    fc.assert(
      fc.property(seeds, fc.integer({ min: 1, max: 80 }), (seed, maxRowTokens) => {
        const { records, truth } = randomAttempt(seed, wildHabits);
        const { samples } = assembleAttempt(records, { maxRowTokens, overLength });
        const limited = truth.map((one) => limitTruth(one, maxRowTokens, overLength));
        expect(findViolations(limited, samples)).toEqual([]);
        expect(samples.every((sample) => sample.tokenIds.length <= maxRowTokens)).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  it("drop-row leaves out only what no row within the limit holds", () => {
    fc.assert(
      fc.property(seeds, fc.integer({ min: 1, max: 80 }), (seed, maxRowTokens) => {
        const { records, truth } = randomAttempt(seed, wildHabits);
        const whole = assembleAttempt(records).samples;
        const { samples } = assembleAttempt(records, { maxRowTokens, overLength: "drop-row" });
        const fitting = whole.filter((sample) => sample.tokenIds.length <= maxRowTokens);
        const limited = truth.map((one) => ({
          ...one,
          isToBeTrained: one.isToBeTrained && fitting.some((row) => holds(row, one)),
        }));
        expect(findViolations(limited, samples)).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });
});

describe("the checker itself", () => {
  it.each(Object.entries(plantedBugs))("notices a planted bug: %s", (_, plant) => {
    let planted = 0;
    for (let seed = 0; seed < 60; seed++) {
      const { records, truth } = randomAttempt(seed, wildHabits);
      const spoilt = plant(assembleAttempt(records).samples, seededRandom(seed));
      if (spoilt === null) continue;
      planted++;
      expect(findViolations(truth, spoilt)).not.toEqual([]);
    }
    expect(planted).toBeGreaterThan(10);
  });

  it("notices that a side call or a lost retry is trained", () => {
    const habits = { ...plainHabits, retry: 1 };
    const { records, truth } = randomAttempt(1, habits);
    const believing = records.map((record) => ({ ...record, delivered: true, retryOf: "none" }));
    expect(findViolations(truth, assembleAttempt(believing).samples)).not.toEqual([]);
  });
});

describe("the rule it is compared with", () => {
  it("merges what is consecutive, but loses twins and trains side calls", () => {
    const plain = randomAttempt(3, plainHabits);
    expect(mergeConsecutive(plain.records)).toHaveLength(1);
    const versions = mergeConsecutive(plain.records).map(({ tokenIds, lossMask }) => [
      tokenIds,
      lossMask,
    ]);
    const ours = assembleAttempt(plain.records).samples;
    expect(versions).toEqual(ours.map(({ tokenIds, lossMask }) => [tokenIds, lossMask]));
    for (const habits of [{ parallel: 1 }, { sideCall: 1 }, { incomplete: 1 }]) {
      const { records, truth } = randomAttempt(3, { ...plainHabits, ...habits });
      expect(findViolations(truth, mergeConsecutive(records))).not.toEqual([]);
    }
  });
});

function limitTruth(
  one: TrueSampling,
  limit: number,
  policy: "truncate" | "drop-call",
): TrueSampling {
  const room = Math.max(0, limit - one.prompt.length);
  const isWhole = one.response.length <= room;
  if (isWhole) return one;
  const isToBeTrained = one.isToBeTrained && policy === "truncate" && room > 0;
  return { ...one, response: one.response.slice(0, room), isToBeTrained };
}

function holds(row: Sample, one: TrueSampling): boolean {
  const context = [...one.prompt, ...one.response];
  return context.every((id, i) => row.tokenIds[i] === id);
}
