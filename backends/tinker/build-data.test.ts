import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import { policyLossOfRow } from "../native/training/policy-loss.ts";
import { buildDatum, buildLoss, checkTinkerSettings, splitIntoCalls } from "./build-data.ts";
import { buildRow, readClipBounds, rowLoss } from "./server/datum-loss.ts";

const settings: UpdateSettings = {
  loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 },
  correction: { kind: "none" },
  klCoefficient: 0,
  learningRate: 1e-3,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0,
  temperature: 1,
};

const example: TrainingSample = {
  rolloutId: "r",
  attemptId: "0",
  groupId: "g",
  tokenIds: Int32Array.of(1, 2, 3, 4, 5),
  lossMask: Uint8Array.of(0, 0, 1, 1, 0),
  samplingLogprobs: Float32Array.of(Number.NaN, Number.NaN, -0.5, -0.25, Number.NaN),
  policyVersions: Int32Array.of(-1, -1, 7, 7, -1),
  advantages: Float32Array.of(0, 0, 2, 2, 0),
  weights: Float32Array.of(0, 0, 0.5, 0.25, 0),
  callIds: ["c"],
};

describe("buildDatum", () => {
  it("shifts targets by one and folds weights into advantages", () => {
    const { model_input, loss_fn_inputs } = buildDatum(example);
    expect(model_input).toEqual({ chunks: [{ type: "encoded_text", tokens: [1, 2, 3, 4] }] });
    expect(loss_fn_inputs).toEqual({
      target_tokens: { data: [2, 3, 4, 5], dtype: "int64", shape: [4] },
      logprobs: { data: [0, -0.5, -0.25, 0], dtype: "float32", shape: [4] },
      advantages: { data: [0, 1, 0.5, 0], dtype: "float32", shape: [4] },
    });
  });

  const number = fc.double({ min: -3, max: 3, noNaN: true });
  const token = fc.record({
    id: fc.nat(30),
    isTrained: fc.boolean(),
    logprob: fc.double({ min: -4, max: -0.01, noNaN: true }),
    sampled: fc.double({ min: -4, max: -0.01, noNaN: true }),
    advantage: number,
    weight: fc.double({ min: 0, max: 2, noNaN: true }),
  });

  it.each<UpdateSettings["loss"]>([
    { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 },
    { kind: "cispo", clipLow: 0, clipHigh: 4 },
    { kind: "importance-sampling" },
  ])("gives the server the loss and gradient that we mean: $kind", (loss) => {
    fc.assert(
      fc.property(fc.array(token, { minLength: 2, maxLength: 12 }), (tokens) => {
        const row = tokens.map((one, t) => ({ ...one, isTrained: t > 0 && one.isTrained }));
        const column = (valueOf: (one: (typeof row)[number]) => number, elsewhere: number) =>
          Float32Array.from(row, (one) => (one.isTrained ? valueOf(one) : elsewhere));
        const sample: TrainingSample = {
          ...example,
          tokenIds: Int32Array.from(row, (one) => one.id),
          lossMask: Uint8Array.from(row, (one) => (one.isTrained ? 1 : 0)),
          samplingLogprobs: column((one) => one.sampled, Number.NaN),
          policyVersions: Int32Array.from(row, (one) => (one.isTrained ? 0 : -1)),
          advantages: column((one) => one.advantage, 0),
          weights: column((one) => one.weight, 0),
        };
        const logprobs = Float32Array.from(row, (one) => one.logprob);
        const meant = policyLossOfRow({ sample, logprobs }, { ...settings, loss });
        const input = { data: [buildDatum(sample)], ...buildLoss({ loss }) };
        const wire = JSON.parse(JSON.stringify(input)) as Parameters<typeof readClipBounds>[0];
        const limits = { vocabSize: 31, maxLength: 100 };
        const laid = buildRow(wire.data[0]!, 0, wire.loss_fn, limits);
        const got = rowLoss(laid, logprobs, wire.loss_fn, readClipBounds(wire));
        expect(got.loss).toBeCloseTo(meant.loss, 5);
        got.gradient.forEach((slope, t) => expect(slope).toBeCloseTo(meant.gradient[t]!, 4));
      }),
      { numRuns: 200 },
    );
  });
});

describe("splitIntoCalls", () => {
  it("keeps every row, in order, within the limit unless one row is longer", () => {
    const datum = buildDatum(example);
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 2, max: 40 })),
        fc.integer({ min: 1, max: 60 }),
        (lengths, limit) => {
          const data = lengths.map((length) => ({
            ...datum,
            model_input: {
              chunks: [{ type: "encoded_text" as const, tokens: Array.from({ length }, () => 1) }],
            },
          }));
          const calls = splitIntoCalls(data, limit);
          expect(calls.flat()).toEqual(data);
          for (const call of calls) {
            const tokens = call.reduce((n, d) => n + d.model_input.chunks[0]!.tokens.length, 0);
            if (call.length > 1) expect(tokens).toBeLessThanOrEqual(limit);
          }
        },
      ),
    );
  });
});

it("refuses a temperature that no server computes at", () => {
  expect(() => checkTinkerSettings({ ...settings, temperature: 0.7 })).toThrow("temperature 0.7");
  expect(() => checkTinkerSettings(settings)).not.toThrow();
});
