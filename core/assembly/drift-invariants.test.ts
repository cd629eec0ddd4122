import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { assembleAttempt } from "./assemble-attempt.ts";
import type { CapturedCall } from "./captured-call.ts";
import { buildCall } from "./testing/build-call.ts";
import { type Random, seededRandom } from "./testing/random.ts";

/** Ids below 26 are letters; 100 + 26 a + b is the pair ab in one id. */
function decode(ids: Int32Array): string {
  return [...ids]
    .flatMap((id) => (id < 100 ? [id] : [Math.floor((id - 100) / 26), (id - 100) % 26]))
    .map((letter) => String.fromCharCode(97 + letter))
    .join("");
}

/** The same text, one pair of neighbours in one id. */
function retokenise(ids: readonly number[], random: Random): number[] {
  if (ids.length < 2) return [...ids];
  const back = 2 + random.below(Math.min(6, ids.length - 1));
  const at = ids.length - Math.min(back, ids.length);
  const [a, b] = [ids[at] as number, ids[at + 1] as number];
  if (a >= 100 || b >= 100) return [...ids];
  return [...ids.slice(0, at), 100 + 26 * a + b, ...ids.slice(at + 2)];
}

/** A conversation in which history comes back exact, in other ids, or with another text. */
function driftingConversation(seed: number): CapturedCall[] {
  const random = seededRandom(seed);
  const letters = (count: number) => Array.from({ length: count }, () => random.below(26));
  const calls: CapturedCall[] = [];
  let history = letters(4);
  for (let turn = 0; turn < 10; turn++) {
    const prompt = [...history, ...letters(1 + random.below(3))];
    const response = letters(1 + random.below(8));
    const logprobs = response.map(() => -random.next());
    calls.push(buildCall(`c${turn}`, prompt, response, { logprobs }));
    const kind = random.below(3);
    const shown = kind === 0 ? response : retokenise(response, random);
    const edited = kind === 2 ? [...shown.slice(0, -1), random.below(26)] : shown;
    history = [...prompt, ...edited];
  }
  return calls;
}

describe("drift", () => {
  it("gives up only ends of responses, few tokens each, all counted; the rest is exact", () => {
    let absorbed = 0;
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 2 ** 30 }),
        fc.integer({ min: 0, max: 6 }),
        (seed, max) => {
          const calls = driftingConversation(seed);
          const { samples, report } = assembleAttempt(calls, { decode, maxDriftTokens: max });
          absorbed += report.absorbedDrifts;
          const seen = samples.flatMap((sample) => sample.callIds);
          expect(seen.toSorted()).toEqual(calls.map((call) => call.callId).toSorted());
          let lost = 0;
          for (const sample of samples) {
            const inRow = sample.spans.reduce((sum, { start, end }) => sum + end - start, 0);
            expect(sample.lossMask.reduce((sum, mask) => sum + mask, 0)).toBe(inRow);
            for (const { call, start, end } of sample.spans) {
              const response = call.responseIds as Int32Array;
              const kept = end - start;
              expect(kept).toBeGreaterThan(0);
              expect(response.length - kept).toBeLessThanOrEqual(max);
              lost += response.length - kept;
              const context = [...(call.promptIds as Int32Array), ...response.subarray(0, kept)];
              expect([...sample.tokenIds.subarray(0, end)]).toEqual(context);
              expect(sample.samplingLogprobs.subarray(start, end)).toEqual(
                call.logprobs?.subarray(0, kept),
              );
            }
          }
          expect(report.tokens.lost.drift).toBe(lost);
          expect(report.tokens.sampled).toBe(report.tokens.trained + lost);
          const branched = assembleAttempt(calls, { decode, maxDriftTokens: 0 });
          expect(samples.length).toBe(branched.samples.length - report.absorbedDrifts);
        },
      ),
      { numRuns: 300 },
    );
    expect(absorbed).toBeGreaterThan(100);
  });
});
