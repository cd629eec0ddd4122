import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { randomStream } from "./random-stream.ts";
import { type SamplingParameters, sampleToken } from "./sample-token.ts";

const plain: SamplingParameters = { temperature: 1, topP: 1, topK: 0 };
const logits = Float32Array.from([1, 2, 3, 0.5, 3]);

function softmax(values: Iterable<number>, temperature: number): number[] {
  const mass = [...values].map((v) => Math.exp(v / temperature));
  const sum = mass.reduce((a, b) => a + b, 0);
  return mass.map((m) => m / sum);
}

function frequencies(parameters: SamplingParameters, draws = 40_000): number[] {
  const random = randomStream("frequencies", JSON.stringify(parameters));
  const counts = Array.from(logits, () => 0);
  for (let i = 0; i < draws; i++) counts[sampleToken(logits, parameters, random).id]! += 1;
  return counts.map((c) => c / draws);
}

describe("sampleToken", () => {
  it.each<[SamplingParameters, number[]]>([
    [plain, softmax(logits, 1)],
    [{ ...plain, temperature: 0.5 }, softmax(logits, 0.5)],
    [{ ...plain, topK: 2 }, [0, 0, 0.5, 0, 0.5]],
    // p = 0.4 each for ids 2 and 4, 0.147 for id 1: 0.85 needs all three.
    [{ ...plain, topP: 0.85 }, renormalised([1, 2, 4])],
    [{ ...plain, topP: 0.3 }, [0, 0, 1, 0, 0]],
    [{ ...plain, topK: 3, topP: 0.99 }, renormalised([1, 2, 4])],
  ])("draws from the distribution of %j", (parameters, wanted) => {
    // 5 standard deviations of a frequency over 40,000 draws are at most 0.0125.
    frequencies(parameters).forEach((f, i) => expect(f).toBeCloseTo(wanted[i]!, 1.6));
  });

  it("reports logprobs of the whole distribution, also when top-k and top-p cut it", () => {
    const p = softmax(logits, 0.7);
    const random = randomStream(1);
    for (let i = 0; i < 50; i++) {
      const drawn = sampleToken(
        logits,
        { temperature: 0.7, topP: 0.5, topK: 2, topLogprobs: 3 },
        random,
      );
      expect(drawn.logprob).toBeCloseTo(Math.log(p[drawn.id]!), 12);
      expect(drawn.top.map((t) => t.id)).toEqual([2, 4, 1]);
      for (const t of drawn.top) expect(t.logprob).toBeCloseTo(Math.log(p[t.id]!), 12);
    }
  });

  it("is greedy at temperature 0, with logprobs of temperature 1", () => {
    const greedy = sampleToken(logits, { ...plain, temperature: 0 }, randomStream(1));
    expect(greedy.id).toBe(2);
    expect(greedy.logprob).toBeCloseTo(Math.log(softmax(logits, 1)[2]!), 12);
  });

  it("orders alternatives the same for short and long lists", () => {
    fc.assert(
      fc.property(
        fc.array(fc.float({ noNaN: true, min: -9, max: 9 }), { minLength: 1, maxLength: 90 }),
        (values) => {
          const of = (n: number): number[] =>
            sampleToken(
              Float32Array.from(values),
              { ...plain, topLogprobs: n },
              randomStream(0),
            ).top.map((t) => t.id);
          const sorted = values
            .map((v, id) => ({ v, id }))
            .sort((a, b) => b.v - a.v || a.id - b.id)
            .map((t) => t.id);
          expect(of(20)).toEqual(sorted.slice(0, 20));
          expect(of(80)).toEqual(sorted.slice(0, 80));
        },
      ),
    );
  });

  it("refuses logits that are not finite", () => {
    const draw = (l: number[]): unknown =>
      sampleToken(Float32Array.from(l), plain, randomStream(0));
    expect(() => draw([0, Number.NaN])).toThrow(RangeError);
    expect(() => draw([Number.POSITIVE_INFINITY, 0])).toThrow(RangeError);
  });
});

describe("randomStream", () => {
  it("repeats for the same parts, and differs for others", () => {
    const first = (...parts: (string | number)[]): number[] => {
      const random = randomStream(...parts);
      return [random(), random(), random()];
    };
    expect(first(1, "a")).toEqual(first(1, "a"));
    expect(first(1, "a")).not.toEqual(first(1, "b"));
    expect(first("1a")).not.toEqual(first(1, "a"));
  });

  it("is uniform", () => {
    const random = randomStream("uniform");
    const bins = Array.from({ length: 16 }, () => 0);
    for (let i = 0; i < 160_000; i++) bins[Math.floor(random() * 16)]! += 1;
    // chi-square, 15 degrees of freedom: 37.7 has probability 0.001.
    expect(bins.reduce((sum, b) => sum + (b - 10_000) ** 2 / 10_000, 0)).toBeLessThan(37.7);
  });
});

function renormalised(ids: readonly number[]): number[] {
  const p = softmax(logits, 1);
  const sum = ids.reduce((s, id) => s + p[id]!, 0);
  return p.map((v, id) => (ids.includes(id) ? v / sum : 0));
}
