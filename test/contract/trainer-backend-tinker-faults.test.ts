import { afterEach, describe, expect, it } from "vitest";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { TrainerBackend, UpdateResult, UpdateSettings } from "../../core/trainer-backend.ts";
import type { Fault, TinkerDialect } from "../fakes/tinker-dialect.ts";
import { faultPlan } from "../fakes/tinker-fault-plan.ts";
import { updateSettings } from "./trainer-backend.ts";
import { samplePolicy } from "./trainer-backend-policy.ts";
import { openTinkerUnderTest, type TinkerUnderTest } from "./trainer-backend-tinker.ts";

const opened: TinkerUnderTest[] = [];
afterEach(async () => {
  for (const one of opened.splice(0)) await one.close();
});

async function open(...options: Parameters<typeof openTinkerUnderTest>): Promise<TinkerUnderTest> {
  const one = await openTinkerUnderTest(...options);
  opened.push(one);
  return one;
}

const updateCount = 3;
let samples: TrainingSample[];

/** An update as a controller makes it: what may be repeated is, under the same id. */
async function update(
  current: () => TrainerBackend,
  request: Parameters<TrainerBackend["update"]>[0],
): Promise<UpdateResult> {
  for (let tryIndex = 1; ; tryIndex += 1) {
    try {
      return await current().update(request);
    } catch (error) {
      const isRetryable = error instanceof OutriggerError && error.retryable;
      if (!isRetryable || tryIndex === 10) throw error;
    }
  }
}

/** Three updates, one after the other. */
async function train(
  current: () => TrainerBackend,
  between: (index: number) => Promise<void> = async () => undefined,
  settings = updateSettings,
): Promise<UpdateResult[]> {
  const results: UpdateResult[] = [];
  for (let version = 0; version < updateCount; version++) {
    await between(version);
    const request = {
      updateId: `u${version}`,
      fromVersion: version,
      settings,
      samples: samples.slice(0, 2 + version),
    };
    results.push(await update(current, request));
  }
  return results;
}

let undisturbed: { results: UpdateResult[]; weights: Buffer; optimizer: Buffer } | undefined;

/** Weights and moments after the same updates on a server that nothing goes wrong with. */
async function wanted(): Promise<NonNullable<typeof undisturbed>> {
  if (undisturbed !== undefined) return undisturbed;
  const clean = await open();
  const [endpoint] = await clean.backend.policyEndpoints();
  samples = await Promise.all(
    [1, -1, 0.5, -0.5].map(async (advantage, i) => {
      const options = { advantage, maxTokens: 24, seed: i };
      return (await samplePolicy(endpoint!, `prompt number ${i}`, options)).sample;
    }),
  );
  const results = await train(() => clean.backend);
  undisturbed = { results, ...(await clean.state()) };
  return undisturbed;
}

async function expectUndisturbed(
  disturbed: TinkerUnderTest,
  results: readonly UpdateResult[],
): Promise<void> {
  const { results: wantedResults, weights, optimizer } = await wanted();
  expect(results).toEqual(wantedResults);
  const state = await disturbed.state();
  expect(state.weights.equals(weights), "weights").toBe(true);
  expect(state.optimizer.equals(optimizer), "moments and step count").toBe(true);
}

const trainingCalls = [
  "forward_backward",
  "optim_step",
  "save_weights",
  "save_weights_for_sampler",
];
const dialects: readonly TinkerDialect[] = ["outrigger", "skyrl", "verl"];
const faults: readonly Fault[] = ["refused", "gateway", "lost", "unseen"];

describe("no update is applied twice and none is lost, by weights and moments", () => {
  it.each(dialects)("%s: each training call fails once in each way", async (dialect) => {
    await wanted();
    const left = [...trainingCalls, "retrieve_future"].flatMap((path) =>
      faults.map((fault) => ({ path, fault })),
    );
    let isTraining = false;
    let quiet = 0;
    const disturbed = await open({
      dialect,
      fault: (path) => {
        // One fault at a time, with time in between.
        if (!isTraining || quiet-- > 0) return undefined;
        const index = left.findIndex((one) => one.path === path);
        if (index < 0) return undefined;
        quiet = 6;
        return left.splice(index, 1)[0]?.fault;
      },
    });
    await disturbed.backend.policyEndpoints();
    isTraining = true;
    const results = await train(() => disturbed.backend);
    await expectUndisturbed(disturbed, results);
    expect(left.length).toBeLessThan(13);
  });

  it.each([11, 12, 13])("faults at random, seed %i, in every dialect", async (seed) => {
    await wanted();
    const dialect = dialects[seed % dialects.length]!;
    const disturbed = await open({ dialect, fault: faultPlan(seed, 3, 8) });
    const results = await train(() => disturbed.backend);
    await expectUndisturbed(disturbed, results);
  });

  it.each(dialects)("%s: faults while a loss is worked out here", async (dialect) => {
    await wanted();
    const settings: UpdateSettings = {
      ...updateSettings,
      correction: { kind: "truncate", level: "token", max: 2 },
      klCoefficient: 0.05,
    };
    const quiet = await open({ dialect });
    const disturbed = await open({ dialect, fault: faultPlan(5, 3, 8) });
    const none = async (): Promise<void> => undefined;
    const results = await train(() => quiet.backend, none, settings);
    expect(await train(() => disturbed.backend, none, settings)).toEqual(results);
    expect(results[1]?.metrics["reference/kl"]).toBeGreaterThan(0);
    const [one, other] = [await quiet.state(), await disturbed.state()];
    expect(other.weights.equals(one.weights), "weights").toBe(true);
    expect(other.optimizer.equals(one.optimizer), "moments and step count").toBe(true);
  });

  it.each(dialects)("%s: the server restarts and the client is opened again", async (dialect) => {
    await wanted();
    const disturbed = await open({ dialect });
    let backend = disturbed.backend;
    const results = await train(
      () => backend,
      async (index) => {
        if (index === 1) await disturbed.restartServer();
        if (index === 2) backend = await disturbed.restartBackend();
      },
    );
    await expectUndisturbed(disturbed, results);
  });

  it.each(dialects)("%s: the client dies after each call of an update", async (dialect) => {
    await wanted();
    // The two others are between these.
    for (const lastCall of ["forward_backward", "optim_step", "save_weights_for_sampler"]) {
      let calls = 0;
      let isArmed = false;
      let died = (): void => undefined;
      const death = new Promise<void>((resolve) => {
        died = resolve;
      });
      const disturbed = await open({
        dialect,
        onCarriedOut: (path) => {
          if (isArmed && path === lastCall && ++calls === 1) died();
        },
      });
      let backend = disturbed.backend;
      await backend.policyEndpoints();
      isArmed = true;
      const first = {
        updateId: "u0",
        fromVersion: 0,
        settings: updateSettings,
        samples: samples.slice(0, 2),
      };
      const cut = backend.update(first).then(
        () => undefined,
        (error: unknown) => error,
      );
      await death;
      backend = await disturbed.restartBackend();
      const error = await cut;
      if (error !== undefined) expect(error).toMatchObject({ origin: "backend", retryable: true });
      await expectUndisturbed(disturbed, await train(() => backend));
    }
  });

  it("an update that is given up leaves nothing behind, and another takes its place", async () => {
    await wanted();
    const abort = new AbortController();
    let isArmed = false;
    const disturbed = await open({
      onCarriedOut: (path) => {
        if (isArmed && path === "optim_step") abort.abort(new Error("enough"));
      },
    });
    await disturbed.backend.policyEndpoints();
    isArmed = true;
    const given = { updateId: "other", fromVersion: 0, settings: updateSettings, samples };
    await expect(disturbed.backend.update(given, abort.signal)).rejects.toThrow("enough");
    isArmed = false;
    await expectUndisturbed(disturbed, await train(() => disturbed.backend));
  });

  it("a server that stays away is a retryable failure, and changes nothing", async () => {
    await wanted();
    let isAway = false;
    const disturbed = await open({ fault: () => (isAway ? "refused" : undefined) }, 200);
    await disturbed.backend.policyEndpoints();
    isAway = true;
    const first = {
      updateId: "u0",
      fromVersion: 0,
      settings: updateSettings,
      samples: samples.slice(0, 2),
    };
    await expect(disturbed.backend.update(first)).rejects.toMatchObject({
      reason: "tinker-unreachable",
      retryable: true,
    });
    isAway = false;
    await expectUndisturbed(disturbed, await train(() => disturbed.backend));
  });
});
