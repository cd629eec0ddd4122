import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { TrainingSample } from "../../../core/sample.ts";
import type { UpdateRequest, UpdateResult } from "../../../core/trainer-backend.ts";
import type { Logger } from "../../../runtime/log.ts";
import type { Compute } from "../compute/compute.ts";
import { createSerialQueue } from "../compute/serial-queue.ts";
import type { NamedWeights } from "../model/named-weights.ts";
import type { PolicyEngine } from "../serving/policy-engine.ts";
import { withUpdate } from "../state/state-record.ts";
import type { StateStore, TrainingState } from "../state/state-store.ts";
import { accumulateUpdate, stepUpdate } from "./accumulate-update.ts";
import {
  checkSample,
  checkUpdateSettings,
  hasTrainedToken,
  updateNotFinite,
} from "./check-update.ts";

export interface NativeTrainerOptions {
  readonly compute: Compute;
  readonly engine: PolicyEngine;
  readonly store: StateStore;
  /** The state that compute and engine are in. */
  readonly state: Pick<TrainingState, "record">;
  /** Opens the frozen start model, once, when an update first asks for KL. */
  readonly openReference: () => Promise<Compute>;
  /** Longest row that can be trained. */
  readonly maxLength: number;
  /** Padded tokens of one micro-batch. */
  readonly tokenBudget: number;
  readonly log: Logger;
}

export type NativeUpdate = Omit<UpdateRequest, "samples"> & {
  readonly samples: readonly TrainingSample[];
};

/** Optimizer updates on the policy that an engine serves, with their durable state. */
export interface NativeTrainer {
  readonly version: number;
  /**
   * One optimizer step, made durable and published between two decode steps. Repeating a known
   * `updateId` gives its first result. An abort before the step changes nothing; after it the
   * update completes.
   */
  update(
    update: NativeUpdate,
    signal?: AbortSignal,
    onProgress?: (samplesDone: number) => void,
  ): Promise<UpdateResult>;
  checkpoint(name: string): Promise<{ readonly location: string; readonly version: number }>;
  restore(name: string): Promise<{ readonly version: number }>;
  /** See `TrainerBackend.rollBack`. */
  rollBack(name: string, toVersion: number): Promise<{ readonly version: number }>;
  close(): Promise<void>;
}

export function createNativeTrainer(options: NativeTrainerOptions): NativeTrainer {
  const { compute, engine, store, log } = options;
  let record = options.state.record;
  let reference: Promise<Compute> | undefined;
  // One at a time: a second update waits, and may be cancelled while it does.
  const serial = createSerialQueue();

  const install = async (state: TrainingState): Promise<void> => {
    compute.clearGradients();
    await compute.setWeights(state.weights);
    await compute.setOptimizerState(state.optimizer);
  };

  /** Back to the last committed state after a step that could not be kept. */
  const rollBack = async (): Promise<void> => {
    const state = await store.load();
    if (state === undefined) throw new Error("the state store is empty");
    await install(state);
  };

  /** Makes a saved state the present one, durable and published between two decode steps. */
  const adopt = async (state: TrainingState): Promise<{ readonly version: number }> => {
    const version = await engine.publish(async () => {
      try {
        await install(state);
        await store.commit(state);
      } catch (error) {
        await rollBack();
        throw error;
      }
      record = state.record;
      return record.version;
    });
    return { version };
  };

  const stepAndCommit = async (
    update: NativeUpdate,
    result: Omit<UpdateResult, "gradNorm">,
  ): Promise<UpdateResult> => {
    const { gradNorm } = await stepUpdate(compute, update.settings);
    const whole = { ...result, gradNorm };
    try {
      const weights = await compute.weights();
      checkWeightsFinite(weights);
      const next = withUpdate(record, whole);
      await store.commit({ record: next, weights, optimizer: await compute.optimizerState() });
      record = next;
      return whole;
    } catch (error) {
      await rollBack();
      throw error;
    }
  };

  const runUpdate = async (
    update: NativeUpdate,
    signal: AbortSignal | undefined,
    onProgress: ((samplesDone: number) => void) | undefined,
  ): Promise<UpdateResult> => {
    signal?.throwIfAborted();
    const known = record.updates.find((result) => result.updateId === update.updateId);
    if (known !== undefined) return known;
    checkVersion(update, record.version);
    checkUpdateSettings(update.settings);
    for (const sample of update.samples) checkSample(sample, compute.config, options.maxLength);
    const trainable = update.samples.filter(hasTrainedToken);
    if (trainable.length === 0) return emptyResult(update, record.version);
    if (update.settings.klCoefficient !== 0) reference ??= options.openReference();
    const accumulated = await accumulateUpdate(trainable, {
      compute,
      reference: await reference,
      settings: update.settings,
      tokenBudget: options.tokenBudget,
      signal,
      onProgress,
    });
    let result: UpdateResult | undefined;
    await engine.publish(async () => {
      signal?.throwIfAborted();
      result = await stepAndCommit(update, {
        ...accumulated,
        updateId: update.updateId,
        version: record.version + 1,
        applied: true,
        sampleCount: update.samples.length,
      });
      return result.version;
    });
    return result as unknown as UpdateResult;
  };

  return {
    get version() {
      return record.version;
    },
    update: (update, signal, onProgress) =>
      serial(async () => {
        try {
          const result = await runUpdate(update, signal, onProgress);
          log.info(
            { updateId: result.updateId, version: result.version, applied: result.applied },
            "update",
          );
          return result;
        } catch (error) {
          compute.clearGradients();
          throw error;
        }
      }),
    checkpoint: (name) =>
      serial(async () => ({ location: await store.saveNamed(name), version: record.version })),
    restore: (name) => serial(async () => adopt(await store.loadNamed(name))),
    rollBack: (name, toVersion) =>
      serial(async () => {
        if (record.version === toVersion) return { version: toVersion };
        checkVersion(
          { updateId: `rollback to ${name}`, fromVersion: toVersion - 1 },
          record.version,
        );
        const state = await store.loadNamed(name);
        // What was applied stays known: an update must not be made twice for having been undone.
        const { updates } = record;
        const result = await adopt({
          ...state,
          record: { ...state.record, version: toVersion, updates },
        });
        log.info({ checkpoint: name, ...result }, "rolled back");
        return result;
      }),
    close: () =>
      serial(async () => {
        await (await reference)?.close();
      }),
  };
}

function checkVersion(
  update: Pick<NativeUpdate, "updateId" | "fromVersion">,
  version: number,
): void {
  if (update.fromVersion === version) return;
  throw new OutriggerError(
    "version-mismatch",
    `update ${update.updateId} starts from policy version ${update.fromVersion}, the backend is at ${version}`,
    {
      origin: "backend",
      hint: "Restore the checkpoint that the run goes on from, or start the run from this version.",
    },
  );
}

function checkWeightsFinite(weights: NamedWeights): void {
  for (const [name, { data }] of weights) {
    if (!data.every(Number.isFinite)) throw updateNotFinite(`the step makes ${name} not finite`);
  }
}

function emptyResult(update: NativeUpdate, version: number): UpdateResult {
  return {
    updateId: update.updateId,
    version,
    applied: false,
    sampleCount: update.samples.length,
    trainedTokenCount: 0,
    loss: 0,
    gradNorm: 0,
    logprobGap: { meanAbs: 0, p99Abs: 0, maxAbs: 0, kl: 0 },
    meanRatio: 1,
    clippedFraction: 0,
    metrics: {},
  };
}
