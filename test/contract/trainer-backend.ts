import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { TrainerBackend, UpdateRequest, UpdateSettings } from "../../core/trainer-backend.ts";
import { samplePolicy } from "./trainer-backend-policy.ts";

/** A running backend with a fresh policy at version 0. */
export interface BackendUnderTest {
  readonly backend: TrainerBackend;
  /** Ends the backend as a crash would and starts it over the same durable state. */
  restart(): Promise<TrainerBackend>;
  close(): Promise<void>;
}

export interface TrainerBackendSuiteOptions {
  readonly open: () => Promise<BackendUnderTest>;
  /** Cases that this implementation cannot have, with the reason. */
  readonly skip?: Readonly<Partial<Record<"restart" | "restore", string>>>;
}

export const updateSettings: UpdateSettings = {
  loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 },
  correction: { kind: "none" },
  klCoefficient: 0,
  learningRate: 5e-3,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.01,
  maxGradNorm: 1,
  temperature: 1,
};

interface Fingerprint {
  readonly logprobs: readonly number[];
  readonly versions: readonly unknown[];
}

/** Equal but for what batching and cached prefixes do to the last bits. */
function expectSame(actual: Fingerprint, wanted: Fingerprint): void {
  expect(actual.versions).toEqual(wanted.versions);
  actual.logprobs.forEach((v, i) => expect(v).toBeCloseTo(wanted.logprobs[i]!, 4));
}

const reasonOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => "resolved",
    (error: unknown) =>
      error instanceof OutriggerError ? `${error.origin}: ${error.reason}` : String(error),
  );

/** The suite that every `TrainerBackend` passes. */
export function describeTrainerBackend(name: string, options: TrainerBackendSuiteOptions): void {
  describe(`TrainerBackend: ${name}`, () => {
    let test: BackendUnderTest;
    let backend: TrainerBackend;
    let updates = 0;

    beforeAll(async () => {
      test = await options.open();
      backend = test.backend;
    });
    afterAll(() => test.close());

    const endpoint = async () => (await backend.policyEndpoints())[0]!;
    const versionNow = async (): Promise<number> => (await endpoint()).version;
    const sample = async (prompt: string, advantage = 1): Promise<TrainingSample> =>
      (await samplePolicy(await endpoint(), prompt, { advantage, maxTokens: 8, seed: 3 })).sample;
    /** Greedy logprobs of a fixed prompt: they tell policies apart, and name the version. */
    const fingerprint = async (): Promise<Fingerprint> => {
      const { sample, versions } = await samplePolicy(await endpoint(), "fingerprint", {
        advantage: 0,
        maxTokens: 6,
        temperature: 0,
      });
      return { logprobs: Array.from(sample.samplingLogprobs).slice(-6), versions };
    };
    const request = async (samples: UpdateRequest["samples"]): Promise<UpdateRequest> => ({
      updateId: `u${updates++}`,
      fromVersion: await versionNow(),
      settings: updateSettings,
      samples,
    });
    const unchanged = async (run: () => Promise<unknown>): Promise<void> => {
      const before = await fingerprint();
      await run();
      expectSame(await fingerprint(), before);
    };

    it("describes itself and serves its policy", async () => {
      const description = await backend.describe();
      expect(description.maxSequenceLength).toBeGreaterThan(0);
      expect(description.losses).toContain("ppo");
      expect(await endpoint()).toMatchObject({ model: description.model, version: 0 });
    });

    it("applies an update of one sample and publishes the next version", async () => {
      const before = await fingerprint();
      const trained = await sample("one sample");
      const result = await backend.update(await request([trained]));
      expect(result).toMatchObject({ applied: true, version: 1, sampleCount: 1 });
      expect(result.trainedTokenCount).toBe(trained.lossMask.filter((m) => m === 1).length);
      expect(result.gradNorm).toBeGreaterThan(0);
      const after = await fingerprint();
      expect(Math.abs(after.logprobs[0]! - before.logprobs[0]!)).toBeGreaterThan(1e-3);
      expect(after.versions).toEqual([{ version: 1, start: 0, end: 6 }]);
    });

    it("agrees with its sampler: gap below 1e-5 and ratio 1 on its own samples", async () => {
      const samples = [await sample("a"), await sample("bb", -1), await sample("a longer prompt")];
      const result = await backend.update(await request(samples));
      expect(result.logprobGap.meanAbs).toBeLessThan(1e-5);
      expect(result.logprobGap.p99Abs).toBeLessThanOrEqual(result.logprobGap.maxAbs);
      expect(result.meanRatio).toBeCloseTo(1, 5);
      expect(result.clippedFraction).toBe(0);
    });

    it("moves probability towards what had a positive advantage", async () => {
      const good = await sample("direction", 1);
      const scaled = { ...good, weights: good.weights.map((w) => w * 4) };
      const before = good.samplingLogprobs.filter((v) => !Number.isNaN(v));
      for (let i = 0; i < 3; i++) await backend.update(await request([scaled]));
      const result = await backend.update(await request([scaled]));
      // The mean ratio is that of the trained tokens, now against when they were sampled.
      expect(before.length).toBeGreaterThan(0);
      expect(result.meanRatio).toBeGreaterThan(1.01);
    });

    it("gives the first result again for a known update id", async () => {
      const first = await request([await sample("twice")]);
      const result = await backend.update(first);
      await unchanged(async () => expect(await backend.update(first)).toEqual(result));
    });

    it("refuses an update from another version", async () => {
      const wrong = { ...(await request([await sample("x")])), fromVersion: 99 };
      await unchanged(async () =>
        expect(await reasonOf(backend.update(wrong))).toBe("backend: version-mismatch"),
      );
    });

    it("applies nothing for an empty batch, and for one without weight", async () => {
      const plain = await sample("x");
      const weightless = { ...plain, weights: new Float32Array(plain.weights.length) };
      const version = await versionNow();
      await unchanged(async () => {
        expect(await backend.update(await request([]))).toMatchObject({
          applied: false,
          version,
          sampleCount: 0,
          trainedTokenCount: 0,
        });
        expect(await backend.update(await request([weightless]))).toMatchObject({
          applied: false,
          version,
          trainedTokenCount: 0,
        });
      });
    });

    it("refuses a sample over the model's length, naming the rollout", async () => {
      const { maxSequenceLength } = await backend.describe();
      const long = await sample("x");
      const grow = <A extends Int32Array | Uint8Array | Float32Array>(a: A, fill: number): A => {
        const grown = new (a.constructor as new (n: number) => A)(maxSequenceLength + 1).fill(fill);
        grown.set(a);
        return grown as A;
      };
      const over: TrainingSample = {
        ...long,
        tokenIds: grow(long.tokenIds, 1),
        lossMask: grow(long.lossMask, 0),
        samplingLogprobs: grow(long.samplingLogprobs, Number.NaN),
        policyVersions: grow(long.policyVersions, -1),
        advantages: grow(long.advantages, 0),
        weights: grow(long.weights, 0),
      };
      await unchanged(async () => {
        const update = backend.update(await request([await sample("y"), over]));
        await expect(update).rejects.toThrow(over.rolloutId);
        expect(await reasonOf(update)).toBe("backend: sample-too-long");
      });
    });

    it.each(["advantages", "samplingLogprobs", "weights"] as const)(
      "refuses NaN in %s and goes on",
      async (field) => {
        const good = await sample("not a number");
        const bad = { ...good, [field]: good[field].map(() => Number.NaN) };
        await unchanged(async () =>
          expect(await reasonOf(backend.update(await request([good, bad])))).toBe(
            "backend: update-not-finite",
          ),
        );
        expect(await backend.update(await request([good]))).toMatchObject({ applied: true });
      },
    );

    it("refuses a step that makes the weights infinite", async () => {
      const settings = { ...updateSettings, learningRate: 1e39 };
      await unchanged(async () =>
        expect(
          await reasonOf(backend.update({ ...(await request([await sample("x")])), settings })),
        ).toBe("backend: update-not-finite"),
      );
    });

    it("refuses settings that cannot be meant", async () => {
      const settings: UpdateSettings = {
        ...updateSettings,
        loss: { kind: "ppo", clipLow: 0.2, clipHigh: 0.2 },
      };
      await unchanged(async () => {
        const update = backend.update({ ...(await request([await sample("x")])), settings });
        await expect(update).rejects.toThrow(/clipHigh.*1\.2/);
      });
    });

    it("changes nothing when an update is cancelled while its samples are sent", async () => {
      const abort = new AbortController();
      const good = await sample("cancelled");
      async function* samples(): AsyncGenerator<TrainingSample> {
        yield good;
        abort.abort(new Error("enough"));
        yield good;
      }
      const wanted = await request(samples());
      await unchanged(async () =>
        expect(await reasonOf(backend.update(wanted, abort.signal))).toBe("Error: enough"),
      );
      const again = await backend.update({ ...wanted, samples: [good] });
      expect(again).toMatchObject({ applied: true, sampleCount: 1 });
    });

    it.skipIf(options.skip?.restore !== undefined)(
      "returns to a named checkpoint, optimizer included",
      async () => {
        const { version } = await backend.checkpoint("base");
        const at = await fingerprint();
        const one = await request([await sample("after the checkpoint")]);
        const first = await backend.update(one);
        const moved = await fingerprint();
        expect(await backend.restore("base")).toEqual({ version });
        expectSame(await fingerprint(), at);
        expect(await backend.update({ ...one, updateId: "again" })).toEqual({
          ...first,
          updateId: "again",
        });
        expectSame(await fingerprint(), moved);
        expect(await reasonOf(backend.restore("never-made"))).toBe("backend: checkpoint-missing");
        expect(await reasonOf(backend.checkpoint("../outside"))).toBe(
          "user: checkpoint-name-invalid",
        );
      },
    );

    it.skipIf(options.skip?.restore !== undefined)(
      "rolls back to a checkpoint as a new version, once, and forgets no update",
      async () => {
        await backend.checkpoint("good");
        const at = await fingerprint();
        const bad = await request([await sample("the wrong way")]);
        const applied = await backend.update(bad);
        const toVersion = applied.version + 1;
        expect(await reasonOf(backend.rollBack("good", toVersion + 1))).toBe(
          "backend: version-mismatch",
        );
        expect(await reasonOf(backend.rollBack("never-made", toVersion))).toBe(
          "backend: checkpoint-missing",
        );
        expect(await backend.rollBack("good", toVersion)).toEqual({ version: toVersion });
        const back = await fingerprint();
        expect(back.versions).toEqual([{ version: toVersion, start: 0, end: 6 }]);
        expectSame({ ...back, versions: at.versions }, at);
        await unchanged(async () => {
          expect(await backend.rollBack("good", toVersion)).toEqual({ version: toVersion });
          expect(await backend.update(bad)).toEqual(applied);
        });
        // It goes on from there: the same step as from the checkpoint.
        const again = { ...bad, updateId: `u${updates++}`, fromVersion: toVersion };
        const { version, gradNorm } = await backend.update(again);
        expect(version).toBe(toVersion + 1);
        expect(gradNorm).toBeCloseTo(applied.gradNorm, 5);
      },
    );

    it.skipIf(options.skip?.restart !== undefined)(
      "is in the same state after a restart, and remembers its last update",
      async () => {
        const last = await request([await sample("before the restart")]);
        const result = await backend.update(last);
        const before = await fingerprint();
        backend = await test.restart();
        expectSame(await fingerprint(), before);
        await unchanged(async () => expect(await backend.update(last)).toEqual(result));
      },
    );

    it.skipIf(options.skip?.restart !== undefined)(
      "changes nothing when it ends in the middle of an update, and takes it again",
      async () => {
        const good = await sample("interrupted");
        const before = await fingerprint();
        let sent = (): void => undefined;
        const firstIsSent = new Promise<void>((resolve) => {
          sent = resolve;
        });
        async function* endless(): AsyncGenerator<TrainingSample> {
          yield good;
          sent();
          await new Promise(() => undefined);
        }
        const wanted = await request(endless());
        const failed = backend.update(wanted).catch((error: unknown) => error);
        await firstIsSent;
        backend = await test.restart();
        expect(await failed).toMatchObject({ origin: "backend", retryable: true });
        expectSame(await fingerprint(), before);
        expect(await backend.update({ ...wanted, samples: [good] })).toMatchObject({
          applied: true,
          version: wanted.fromVersion + 1,
        });
      },
    );
  });
}
