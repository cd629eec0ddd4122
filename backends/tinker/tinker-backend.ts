import { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type {
  PolicyEndpoint,
  TrainerBackend,
  UpdateRequest,
  UpdateResult,
} from "../../core/trainer-backend.ts";
import { linkedAbort } from "../../runtime/linked-abort.ts";
import type { Logger } from "../../runtime/log.ts";
import { createSerialQueue } from "../native/compute/serial-queue.ts";
import { loadPolicyModel, type PolicyModel } from "../native/model/load-model.ts";
import {
  checkSample,
  checkUpdateSettings,
  hasTrainedToken,
} from "../native/training/check-update.ts";
import { checkTinkerSettings } from "./build-data.ts";
import { openOutsideEngines, type PolicyEngines } from "./outside-engines.ts";
import { openPolicyProxy } from "./policy-proxy.ts";
import { tinkerCapabilities } from "./tinker-capabilities.ts";
import { openTinkerClient, type TinkerClient, type TinkerClientOptions } from "./tinker-client.ts";
import { openTinkerJournal } from "./tinker-journal.ts";
import { createTinkerTrainer } from "./tinker-trainer.ts";

export interface TinkerBackendOptions extends Omit<TinkerClientOptions, "log"> {
  /** What the server is called in the journal, where its URL may change. */
  readonly identity?: string;
  /** The model's name on the server; the only one that the server has unless given. */
  readonly baseModel?: string | undefined;
  /** Directory with the model's config.json, tokenizer and chat template; no weights needed. */
  readonly modelDirectory: string;
  /** Where the journal is kept; a backend over the same one goes on where it was. */
  readonly journalDirectory: string;
  readonly loraRank?: number | undefined;
  /** Longest row and context, where the server's is shorter than the model's. */
  readonly maxLength?: number | undefined;
  readonly policyHost?: string;
  readonly policyPort?: number;
  readonly maxCallTokens?: number;
  /** Samples asked for at once. */
  readonly concurrency?: number;
  /** vLLM engines that serve the policy as a LoRA adapter, in place of the server's sampling. */
  readonly engines?: PolicyEngines | undefined;
  readonly log: Logger;
}

const maxWaiting = 1024;

/**
 * A trainer behind the Tinker protocol, and an OpenAI endpoint for its policy. The server may be
 * down when it is opened: calls then say so, retryably.
 */
export async function openTinkerBackend(options: TinkerBackendOptions): Promise<TrainerBackend> {
  const { log } = options;
  const model = await loadPolicyModel(options.modelDirectory);
  const client = openTinkerClient(options);
  const server = lazyServer(client, options, model);
  const serial = createSerialQueue();
  const closing = new AbortController();
  const opened = lazily(async (signal?: AbortSignal) => {
    const known = await server(signal);
    const { baseModel } = known;
    maxLength = known.maxLength;
    const identity = { url: options.identity ?? options.url, baseModel };
    const journal = await openTinkerJournal(options.journalDirectory, identity);
    const { loraRank = 32, maxCallTokens = 65_536 } = options;
    const trainer = createTinkerTrainer({
      client,
      journal,
      baseModel,
      loraRank,
      maxCallTokens,
      log,
    });
    return { journal, trainer };
  });
  /** The trainer with a published policy, for callers in the queue. */
  const ready = async (signal?: AbortSignal) => {
    const both = await opened(signal);
    await both.trainer.prepare(signal);
    await publish(both, signal);
    return both;
  };
  const outside =
    options.engines === undefined
      ? undefined
      : openOutsideEngines(options.engines, options.journalDirectory, client, log);
  /** A version that engines outside do not have is not there for anyone. */
  const publish = async (
    { trainer }: Awaited<ReturnType<typeof opened>>,
    signal?: AbortSignal,
  ): Promise<void> => {
    if (trainer.served === undefined) return;
    await outside?.publish(trainer.served, trainer.canaryPrompt, signal);
  };
  let served = { path: "", version: 0 };
  let maxLength = Math.min(options.maxLength ?? Infinity, model.config.maxSequenceLength);
  const proxy = await openPolicyProxy({
    client,
    model,
    modelName: options.baseModel ?? model.name,
    host: options.policyHost ?? "127.0.0.1",
    port: options.policyPort ?? 0,
    maxLength: () => maxLength,
    concurrency: options.concurrency ?? 64,
    maxWaiting,
    served: () => served,
    republish: () =>
      serial(async () => {
        const { trainer } = await ready();
        // Whoever came first has done it.
        if (trainer.served?.path === served.path) await trainer.republish();
        served = trainer.served ?? served;
      }),
    log,
  });
  const inTurn = <T>(
    signal: AbortSignal | undefined,
    job: (both: Awaited<ReturnType<typeof ready>>) => Promise<T>,
  ): Promise<T> =>
    serial(async () => {
      signal?.throwIfAborted();
      const both = await ready(signal);
      try {
        const result = await job(both);
        await publish(both, signal);
        return result;
      } finally {
        served = both.trainer.served ?? served;
      }
    });

  return {
    describe: async (signal) => {
      maxLength = (await server(signal)).maxLength;
      return {
        kind: "tinker",
        model: options.baseModel ?? model.name,
        compute: `Tinker server at ${options.url}`,
        maxSequenceLength: maxLength,
        ...tinkerCapabilities,
      };
    },
    policyEndpoints: (signal) =>
      inTurn(
        signal,
        async ({ journal }): Promise<PolicyEndpoint[]> =>
          outside?.endpoints() ?? [
            {
              url: proxy.url,
              model: options.baseModel ?? model.name,
              version: journal.state.version,
            },
          ],
      ),
    update: async (request, signal) => {
      // Read before the turn: samples that come slowly hold nothing up.
      const samples = await collect(request.samples, signal, closing.signal);
      return inTurn(signal, async ({ journal, trainer }) => {
        const known = journal.state.updates.find((u) => u.updateId === request.updateId);
        if (known !== undefined) return known;
        checkVersion(request, journal.state.version);
        checkUpdateSettings(request.settings);
        checkTinkerSettings(request.settings);
        for (const sample of samples) checkSample(sample, model.config, maxLength);
        const trainable = samples.filter(hasTrainedToken);
        if (trainable.length === 0) return emptyResult(request, samples, journal.state.version);
        const { updateId, fromVersion, settings } = request;
        const checked = { updateId, fromVersion, settings, sampleCount: samples.length, trainable };
        const result = await trainer.update(checked, signal);
        log.info({ updateId, version: result.version }, "update");
        return result;
      });
    },
    checkpoint: (name, signal) =>
      inTurn(signal, async ({ journal, trainer }) => {
        checkName(name);
        return { location: await trainer.saveNamed(name, signal), version: journal.state.version };
      }),
    restore: (name, signal) =>
      inTurn(signal, async ({ journal, trainer }) => {
        checkName(name);
        if (journal.state.checkpoints[name] === undefined) throw missing(name);
        await trainer.restoreNamed(name, undefined, signal);
        return { version: journal.state.version };
      }),
    rollBack: (name, toVersion, signal) =>
      inTurn(signal, async ({ journal, trainer }) => {
        checkName(name);
        const { version } = journal.state;
        if (version === toVersion) return { version };
        const updateId = `rollback to ${name}`;
        checkVersion({ updateId, fromVersion: toVersion - 1 }, version);
        if (journal.state.checkpoints[name] === undefined) throw missing(name);
        await trainer.restoreNamed(name, toVersion, signal);
        log.info({ checkpoint: name, version: toVersion }, "rolled back");
        return { version: journal.state.version };
      }),
    close: async () => {
      closing.abort(closedError());
      proxy.destroy();
      await outside?.close();
      await client.close();
      // Whatever runs has failed now; the journal must be still before another opens it.
      await serial(async () => undefined);
    },
  };
}

interface ServerFacts {
  readonly baseModel: string;
  /** Tokens of the longest row and context: the least of what server, model and options say. */
  readonly maxLength: number;
}

const capabilitiesSchema = z.object({
  supported_models: z.array(
    z.object({
      model_name: z.string().nullish(),
      max_context_length: z.int().positive().nullish(),
    }),
  ),
});

/** Asked until it answers, then remembered. */
function lazyServer(
  client: TinkerClient,
  options: TinkerBackendOptions,
  model: PolicyModel,
): (signal?: AbortSignal) => Promise<ServerFacts> {
  return lazily(async (signal) => {
    const answer = capabilitiesSchema.parse(await client.get("get_server_capabilities", signal));
    const names = answer.supported_models.map((m) => m.model_name ?? "");
    const wanted = options.baseModel ?? (names.length === 1 ? names[0] : undefined);
    const found = answer.supported_models.find((m) => m.model_name === wanted);
    if (wanted === undefined || found === undefined) {
      throw new OutriggerError(
        "base-model-unknown",
        `the Tinker server at ${options.url} has ${wanted ?? "several models"}${wanted === undefined ? "" : " not"}: ${names.join(", ")}`,
        { origin: "user", hint: "Set backend.baseModel to one of them." },
      );
    }
    const limits = [found.max_context_length, options.maxLength, model.config.maxSequenceLength];
    const maxLength = Math.min(...limits.filter((n) => typeof n === "number"));
    return { baseModel: wanted, maxLength };
  });
}

/** One shared result; a failure is forgotten, so that the next caller tries again. */
function lazily<T>(
  open: (signal?: AbortSignal) => Promise<T>,
): (signal?: AbortSignal) => Promise<T> {
  let opened: Promise<T> | undefined;
  return (signal) => {
    opened ??= open(signal).catch((error: unknown) => {
      opened = undefined;
      throw error;
    });
    return opened;
  };
}

/** All samples, unless the caller gives up or the backend is closed first. */
async function collect(
  samples: UpdateRequest["samples"],
  signal: AbortSignal | undefined,
  closing: AbortSignal,
): Promise<TrainingSample[]> {
  const abort = linkedAbort(signal, closing);
  const aborted = new Promise<never>((_, reject) => {
    const fail = (): void => reject(abort.signal.reason as Error);
    if (abort.signal.aborted) fail();
    else abort.signal.addEventListener("abort", fail, { once: true });
  });
  aborted.catch(() => undefined);
  const all: TrainingSample[] = [];
  const iterator = (async function* () {
    yield* samples;
  })();
  try {
    for (;;) {
      const next = await Promise.race([iterator.next(), aborted]);
      abort.signal.throwIfAborted();
      if (next.done === true) return all;
      all.push(next.value);
    }
  } finally {
    abort.release();
  }
}

const closedError = (): OutriggerError =>
  new OutriggerError("backend-closed", "the backend was closed during the update", {
    origin: "backend",
    retryable: true,
  });

function checkVersion(
  { updateId, fromVersion }: Pick<UpdateRequest, "updateId" | "fromVersion">,
  version: number,
): void {
  if (fromVersion === version) return;
  throw new OutriggerError(
    "version-mismatch",
    `update ${updateId} starts from policy version ${fromVersion}, the backend is at ${version}`,
    {
      origin: "backend",
      hint: "Restore the checkpoint that the run goes on from, or start the run from this version.",
    },
  );
}

function checkName(name: string): void {
  if (/^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$/.test(name)) return;
  throw new OutriggerError(
    "checkpoint-name-invalid",
    `checkpoint name ${JSON.stringify(name)} is not a plain file name`,
    { origin: "user", hint: "Use letters, digits, '.', '_' and '-'." },
  );
}

const missing = (name: string): OutriggerError =>
  new OutriggerError("checkpoint-missing", `there is no checkpoint ${name} of this run`, {
    origin: "backend",
    hint: "Make one with `checkpoint` first, or name another.",
  });

function emptyResult(
  { updateId }: UpdateRequest,
  samples: readonly TrainingSample[],
  version: number,
): UpdateResult {
  return {
    updateId,
    version,
    applied: false,
    sampleCount: samples.length,
    trainedTokenCount: 0,
    loss: 0,
    gradNorm: 0,
    logprobGap: { meanAbs: 0, p99Abs: 0, maxAbs: 0, kl: 0 },
    meanRatio: 1,
    clippedFraction: 0,
    metrics: {},
  };
}
