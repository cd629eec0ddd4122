import { createHash } from "node:crypto";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateRequest, UpdateResult } from "../../core/trainer-backend.ts";
import type { Logger } from "../../runtime/log.ts";
import { updateNotFinite } from "../native/training/check-update.ts";
import { accumulateGradient, gradientCallCount } from "./accumulate-gradient.ts";
import type { ServedSampler } from "./asample-engine.ts";
import { buildAdamParams, buildDatum, splitIntoCalls } from "./build-data.ts";
import { parseSequence } from "./parse-sequence.ts";
import { createRowLogprobs } from "./row-logprobs.ts";
import { readOptimMetrics, summariseUpdate } from "./summarise-update.ts";
import { isReason, requestIdOf, type TinkerClient } from "./tinker-client.ts";
import type { TinkerJournal } from "./tinker-journal.ts";
import type { Datum } from "./tinker-wire.ts";

export interface TinkerTrainerOptions {
  readonly client: TinkerClient;
  readonly journal: TinkerJournal;
  readonly baseModel: string;
  readonly loraRank: number;
  /** Tokens of one forward_backward call. */
  readonly maxCallTokens: number;
  readonly log: Logger;
}

/** An update whose samples are whole and checked. */
export type CheckedUpdate = Omit<UpdateRequest, "samples"> & {
  readonly sampleCount: number;
  readonly trainable: readonly TrainingSample[];
};

/**
 * The policy on a Tinker server. Callers serialise.
 *
 * After each update the server keeps the training state under a name, and the journal knows it. A
 * model that may have seen more or less than that (a lost answer, a restart, an abort, NaN) is
 * given up, and a new one is loaded from that state: so no update is applied twice and none is
 * lost, also on a server that cannot tell a repeated call from a new one. Where it can (asked
 * once, by saving a state twice under one sequence id), a call whose answer was lost is simply
 * repeated.
 */
export interface TinkerTrainer {
  readonly served: ServedSampler | undefined;
  /** What a sampler is tried with. */
  readonly canaryPrompt: readonly number[];
  /** Makes and publishes version 0, once. */
  prepare(signal?: AbortSignal): Promise<void>;
  update(update: CheckedUpdate, signal?: AbortSignal): Promise<UpdateResult>;
  /** Publishes the same version again, after the server has forgotten its sampler weights. */
  republish(signal?: AbortSignal): Promise<void>;
  saveNamed(name: string, signal?: AbortSignal): Promise<string>;
  /** Under a version of its own, or as it was, with the updates that were known then. */
  restoreNamed(name: string, asVersion: number | undefined, signal?: AbortSignal): Promise<void>;
}

const maxTries = 8;
const maxRememberedUpdates = 64;
/** Prompt tokens of the canary, and what it is without any. */
const canaryTokens = 16;

export function createTinkerTrainer(options: TinkerTrainerOptions): TinkerTrainer {
  const { client, journal, log } = options;
  let canaryPrompt: readonly number[] = [0];

  const takeSeqIds = async (count: number): Promise<number> => {
    const first = journal.state.nextSeqId;
    await journal.write({ nextSeqId: first + count });
    return first;
  };

  const train = (
    path: string,
    body: Readonly<Record<string, unknown>>,
    seqId: number,
    signal: AbortSignal | undefined,
  ): Promise<Readonly<Record<string, unknown>>> => {
    const isRepeatable = journal.state.isRepeatable === true;
    const call = { ...body, model_id: journal.state.modelId, seq_id: seqId };
    return client.run(path, call, { isRepeatable, signal });
  };

  const rowLogprobs = createRowLogprobs({ client, baseModel: options.baseModel, train });

  /** A name that no other state of this run has: versions repeat when an update is made again. */
  const nameOf = (version: number, seqId: number): string => `v${version}-${seqId}`;

  const saveState = async (
    version: number,
    seqId: number,
    signal: AbortSignal | undefined,
  ): Promise<string> => {
    const path = nameOf(version, seqId);
    const answer = await train("save_weights", { path, type: "save_weights" }, seqId, signal);
    return pathOf(answer, journal.state.modelId, "weights", path);
  };

  const saveSampler = async (
    version: number,
    seqId: number,
    signal: AbortSignal | undefined,
  ): Promise<string> => {
    const path = nameOf(version, seqId);
    const body = { path, type: "save_weights_for_sampler" };
    const answer = await train("save_weights_for_sampler", body, seqId, signal);
    const samplerPath = pathOf(answer, journal.state.modelId, "sampler_weights", path);
    await checkSampler(samplerPath, signal);
    return samplerPath;
  };

  /** One real token from the new weights, before anything counts on them. */
  const checkSampler = async (path: string, signal: AbortSignal | undefined): Promise<void> => {
    const body = {
      type: "sample",
      num_samples: 1,
      model_path: path,
      prompt: { chunks: [{ type: "encoded_text", tokens: canaryPrompt }] },
      sampling_params: { max_tokens: 1, temperature: 1, seed: 0 },
    };
    parseSequence(await client.run("asample", body, { isRepeatable: true, signal }));
  };

  const createModel = async (signal: AbortSignal | undefined): Promise<string> => {
    const { nextModelSeqId } = journal.state;
    await journal.write({ modelId: null, nextModelSeqId: nextModelSeqId + 1 });
    const body = {
      session_id: await client.session(signal),
      model_seq_id: nextModelSeqId,
      base_model: options.baseModel,
      lora_config: { rank: options.loraRank, seed: 0 },
      type: "create_model",
    };
    // A model too many is only memory.
    const send = { isRepeatable: true, signal };
    const answer = await client.run("create_model", body, send).catch((error: unknown) => {
      if (isReason(error, "tinker-not-found")) client.forgetSession();
      throw error;
    });
    return String(answer["model_id"]);
  };

  /** A model that is exactly at the journal's version. */
  const ensureModel = async (signal: AbortSignal | undefined): Promise<void> => {
    const { modelId, statePath, version } = journal.state;
    if (modelId !== null) return;
    const id = await createModel(signal);
    if (statePath !== null) {
      const seqId = await takeSeqIds(1);
      const body = { model_id: id, path: statePath, optimizer: true, seq_id: seqId };
      await client.run(
        "load_weights",
        { ...body, type: "load_weights" },
        {
          isRepeatable: false,
          signal,
        },
      );
    }
    await journal.write({ modelId: id });
    log.info({ modelId: id, version, statePath }, "the Tinker server has the policy");
  };

  const giveUpModel = async (reason: string): Promise<void> => {
    const { modelId, version } = journal.state;
    await journal.write({ modelId: null, pending: null });
    if (modelId === null) return;
    log.warn({ modelId, version, reason }, "the Tinker server's model is given up");
    const body = { model_id: modelId, type: "unload_model" };
    const isRepeatable = false;
    // Where it cannot be unloaded it stays until its session ends.
    await client.send("unload_model", body, { isRepeatable }).catch(() => undefined);
  };

  /** Runs what uses the model; what leaves it in an unknown state gives it up, and tries again. */
  const withModel = async <T>(
    signal: AbortSignal | undefined,
    use: () => Promise<T>,
  ): Promise<T> => {
    for (let tryIndex = 1; ; tryIndex += 1) {
      try {
        await ensureModel(signal);
        return await use();
      } catch (error) {
        // Nothing is in doubt: a later try, or the next process, goes on from the journal.
        if (isReason(error, "backend-closed", "tinker-unreachable")) throw error;
        await giveUpModel(error instanceof Error ? error.message : String(error));
        const isOurs = isReason(
          error,
          "tinker-outcome-unknown",
          "tinker-not-found",
          "tinker-conflict",
        );
        if (!isOurs || tryIndex >= maxTries || signal?.aborted === true) throw error;
      }
    }
  };

  /** Saves a state twice under one sequence id: whether the server sees that it is one call. */
  const learnRepeatability = async (
    seqId: number,
    signal: AbortSignal | undefined,
  ): Promise<string> => {
    const path = nameOf(0, seqId);
    const body = { model_id: journal.state.modelId, path, type: "save_weights", seq_id: seqId };
    const send = { isRepeatable: false, signal };
    const first = await client.send("save_weights", body, send);
    const second = await client.send("save_weights", body, send).catch((error: unknown) => {
      // A name may be given once only: that is about the name, not about the call.
      if (isReason(error, "tinker-conflict", "tinker-refused")) return undefined;
      throw error;
    });
    const isRepeatable =
      second !== undefined &&
      requestIdOf(second, "save_weights") === requestIdOf(first, "save_weights");
    const answer = await client.result("save_weights", requestIdOf(first, "save_weights"), signal);
    if (second !== undefined && !isRepeatable) {
      const id = requestIdOf(second, "save_weights");
      await client.result("save_weights", id, signal).catch(() => undefined);
    }
    await journal.write({ isRepeatable });
    return pathOf(answer, journal.state.modelId, "weights", path);
  };

  const prepare = async (signal?: AbortSignal): Promise<void> => {
    if (journal.state.samplerPath !== null) return;
    // A restored state whose publication was cut short.
    if (journal.state.statePath !== null) return republish(signal);
    await withModel(signal, async () => {
      const seqId = await takeSeqIds(2);
      const statePath = await learnRepeatability(seqId, signal);
      const samplerPath = await saveSampler(0, seqId + 1, signal);
      await journal.write({ statePath, samplerPath });
    });
  };

  const runUpdate = async (
    update: CheckedUpdate,
    plan: UpdatePlan,
    signal: AbortSignal | undefined,
  ): Promise<UpdateResult> => {
    const { version } = journal.state;
    const { trainable, settings } = update;
    const firstSeqId = await claimSeqIds(update.updateId, plan);
    const gradient = await accumulateGradient({
      trainable,
      batches: plan.batches,
      settings,
      maxCallTokens: options.maxCallTokens,
      send: (path, body, callIndex) => {
        const send = path === "forward" ? rowLogprobs.forward : train;
        return send(path, body, firstSeqId + callIndex, signal);
      },
      referenceLogprobs: () => rowLogprobs.ofReference(trainable, signal),
    });
    const summary = summariseUpdate(trainable, gradient, settings);
    const next = firstSeqId + plan.callCount;
    const optim = readOptimMetrics(await train("optim_step", plan.optimStep, next, signal));
    if (Object.values(optim.metrics).some((value) => !Number.isFinite(value))) {
      throw updateNotFinite("the optimizer step reports what is not finite");
    }
    const statePath = await saveState(version + 1, next + 1, signal);
    const samplerPath = await saveSampler(version + 1, next + 2, signal);
    const result: UpdateResult = {
      ...summary,
      gradNorm: optim.gradNorm,
      metrics: { ...summary.metrics, ...optim.metrics },
      updateId: update.updateId,
      version: version + 1,
      applied: true,
      sampleCount: update.sampleCount,
    };
    const before = journal.state;
    signal?.throwIfAborted();
    await journal.write({
      version: version + 1,
      statePath,
      samplerPath,
      pending: null,
      updates: [...before.updates, result].slice(-maxRememberedUpdates),
    });
    await removeUnused([before.statePath, before.samplerPath]);
    return result;
  };

  /** The ids of an update's calls: those of an earlier try with the same body, else new ones. */
  const claimSeqIds = async (updateId: string, plan: UpdatePlan): Promise<number> => {
    const { pending, isRepeatable, nextSeqId } = journal.state;
    const isSame = pending?.updateId === updateId && pending.bodyHash === plan.hash;
    if (pending !== null && isSame && isRepeatable === true) return pending.firstSeqId;
    // Those of the gradient, optim_step, save_weights, save_weights_for_sampler.
    const count = plan.callCount + 3;
    await journal.write({
      nextSeqId: nextSeqId + count,
      pending: { updateId, bodyHash: plan.hash, firstSeqId: nextSeqId },
    });
    return nextSeqId;
  };

  const update = async (wanted: CheckedUpdate, signal?: AbortSignal): Promise<UpdateResult> => {
    const plan = buildPlan(wanted, options.maxCallTokens);
    canaryPrompt = promptOf(wanted.trainable[0] as TrainingSample);
    const { pending, isRepeatable } = journal.state;
    const isSame = pending?.updateId === wanted.updateId && pending.bodyHash === plan.hash;
    if (pending !== null && !(isSame && isRepeatable === true)) {
      await giveUpModel(`update ${pending.updateId} was not finished`);
    }
    try {
      return await withModel(signal, () => runUpdate(wanted, plan, signal));
    } catch (error) {
      throw asNotFinite(error);
    }
  };

  /** Best effort: what stays costs the server's disk space only. */
  const removeUnused = async (paths: readonly (string | null)[]): Promise<void> => {
    const { statePath, samplerPath, checkpoints } = journal.state;
    const kept = new Set([
      statePath,
      samplerPath,
      ...Object.values(checkpoints).map((c) => c.statePath),
    ]);
    for (const path of paths) {
      const parts =
        path === null || kept.has(path) ? null : /^tinker:\/\/([^/]+)\/(.+)$/.exec(path);
      if (parts !== null) {
        await client
          .remove(`training_runs/${parts[1]}/checkpoints/${parts[2]}`)
          .catch(() => undefined);
      }
    }
  };

  const republish = (signal?: AbortSignal): Promise<void> =>
    withModel(signal, async () => {
      const seqId = await takeSeqIds(1);
      await journal.write({
        samplerPath: await saveSampler(journal.state.version, seqId, signal),
      });
    });

  return {
    get served() {
      const { samplerPath, version } = journal.state;
      return samplerPath === null ? undefined : { path: samplerPath, version };
    },
    get canaryPrompt() {
      return canaryPrompt;
    },
    prepare,
    update,
    republish,
    saveNamed: async (name, signal) => {
      // The state of this version is on the server already, under a name of its own.
      const { statePath, version, updates, checkpoints } = journal.state;
      signal?.throwIfAborted();
      const location = statePath as string;
      const saved = { version, statePath: location, updates };
      await journal.write({ checkpoints: { ...checkpoints, [name]: saved } });
      return location;
    },
    restoreNamed: async (name, asVersion, signal) => {
      const saved = journal.state.checkpoints[name] as NonNullable<
        (typeof journal.state.checkpoints)[string]
      >;
      await giveUpModel(`restoring ${name}`);
      const { version, statePath, samplerPath, updates } = journal.state;
      // What was applied stays known where versions go on: it must not be made twice.
      const as = asVersion === undefined ? saved : { ...saved, version: asVersion, updates };
      try {
        await journal.write({ ...as, samplerPath: null });
        await republish(signal);
      } catch (error) {
        await journal.write({ modelId: null, version, statePath, samplerPath, updates });
        throw error;
      }
      await removeUnused([statePath, samplerPath]);
    },
  };
}

interface UpdatePlan {
  /** The rows that are trained, cut into calls. */
  readonly batches: readonly (readonly Datum[])[];
  /** Training calls before the optimizer step. */
  readonly callCount: number;
  readonly optimStep: Readonly<Record<string, unknown>>;
  /** Of all that the calls are made of: the same update has the same hash. */
  readonly hash: string;
}

function buildPlan({ trainable, settings }: CheckedUpdate, maxCallTokens: number): UpdatePlan {
  const optimStep = { adam_params: buildAdamParams(settings), type: "optim_step" };
  const hash = createHash("sha256");
  const data = trainable.map(buildDatum);
  for (const part of [settings, ...data]) hash.update(JSON.stringify(part));
  const batches = splitIntoCalls(data, maxCallTokens);
  const callCount = gradientCallCount(batches.length, settings);
  return { batches, callCount, optimStep, hash: hash.digest("hex") };
}

function promptOf({ tokenIds, lossMask }: TrainingSample): number[] {
  const end = Math.max(1, lossMask.indexOf(1));
  return Array.from(tokenIds.slice(Math.max(0, end - canaryTokens), end));
}

/** Older servers do not say the path of what they saved; it follows from the name. */
function pathOf(
  answer: Readonly<Record<string, unknown>>,
  modelId: string | null,
  kind: "weights" | "sampler_weights",
  name: string,
): string {
  const { path } = answer;
  return typeof path === "string" ? path : `tinker://${modelId}/${kind}/${name}`;
}

/** A server tells of NaN in words only. */
function asNotFinite(error: unknown): unknown {
  const isFailure = isReason(error, "tinker-failed", "tinker-sample-unusable");
  if (!isFailure || !/not finite|non-?finite|\bnan\b|\binf(inity)?\b/i.test(error.message)) {
    return error;
  }
  return updateNotFinite(error.message, error);
}
