import { OutriggerError } from "../../core/outrigger-error.ts";
import { badRequest } from "../native/serving/error-response.ts";
import type { SequenceRequest, ServingEngine } from "../native/serving/policy-engine.ts";
import { parseSequence } from "./parse-sequence.ts";
import { isReason, type TinkerClient } from "./tinker-client.ts";

/** The sampler weights that are the policy now. */
export interface ServedSampler {
  /** `tinker://…/sampler_weights/…` */
  readonly path: string;
  readonly version: number;
}

export interface AsampleEngineOptions {
  readonly client: TinkerClient;
  readonly maxLength: () => number;
  /** Samples asked for at once; the others wait here. */
  readonly concurrency: number;
  readonly maxWaiting: number;
  readonly served: () => ServedSampler;
  /** Makes the same version available again after the server has forgotten its weights. */
  readonly republish: () => Promise<void>;
}

/**
 * Samples a policy with a Tinker server's `asample`. The server gives whole sequences, so tokens
 * come all at once at the end; a stop string is found here, and what was sampled after it is not
 * part of the response. A sequence is wholly of the version that was served when it was sent.
 */
export function createAsampleEngine(options: AsampleEngineOptions): ServingEngine {
  const { client, concurrency, maxWaiting } = options;
  let running = 0;
  const waiting: (() => void)[] = [];

  const enter = async (signal: AbortSignal | undefined): Promise<void> => {
    signal?.throwIfAborted();
    if (running < concurrency) {
      running += 1;
      return;
    }
    if (waiting.length >= maxWaiting) {
      throw new OutriggerError("queue-full", `${waiting.length} requests are waiting already`, {
        origin: "engine",
        retryable: true,
      });
    }
    await new Promise<void>((resolve, reject) => {
      const onAbort = (): void => {
        waiting.splice(waiting.indexOf(start), 1);
        reject(signal?.reason as Error);
      };
      const start = (): void => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      waiting.push(start);
    });
  };
  /** The place goes to who waits longest. */
  const leave = (): void => {
    const next = waiting.shift();
    if (next === undefined) running -= 1;
    else next();
  };

  const sample = async (
    request: SequenceRequest,
    signal: AbortSignal | undefined,
  ): Promise<{ readonly answer: unknown; readonly version: number }> => {
    for (let tryIndex = 0; ; tryIndex += 1) {
      const { path, version } = options.served();
      try {
        const body = buildSampleRequest(request, path);
        // A sample that nobody reads costs time only: it may always be asked for again.
        const answer = await client.run("asample", body, { isRepeatable: true, signal });
        return { answer, version };
      } catch (error) {
        if (!isReason(error, "tinker-not-found") || tryIndex > 0) throw error;
        await options.republish();
      }
    }
  };

  return {
    get version() {
      return options.served().version;
    },
    get maxLength() {
      return options.maxLength();
    },
    get waitingCount() {
      return waiting.length;
    },
    hasRoomFor: (count) => running + waiting.length + count <= concurrency + maxWaiting,
    generate: async (request, signal) => {
      if ((request.sampling.topLogprobs ?? 0) > 0) {
        throw badRequest("a Tinker server gives no alternatives; top_logprobs must be 0");
      }
      await enter(signal);
      try {
        request.onStart?.(0);
        const { answer, version } = await sample(request, signal);
        const { tokens, logprobs } = parseSequence(answer);
        for (const [i, id] of tokens.entries()) {
          const token = { id, logprob: logprobs[i] as number, top: [], version };
          if (request.onToken(token)) return;
        }
      } catch (error) {
        if (!isReason(error, "tinker-unreachable", "tinker-outcome-unknown")) throw error;
        // To the harness that is an engine which is away for a while.
        throw new OutriggerError("engine-closed", error.message, {
          origin: "engine",
          retryable: true,
          cause: error,
        });
      } finally {
        leave();
      }
    },
  };
}

function buildSampleRequest(
  request: SequenceRequest,
  modelPath: string,
): Readonly<Record<string, unknown>> {
  const { sampling, seed, choiceIndex } = request;
  return {
    type: "sample",
    num_samples: 1,
    model_path: modelPath,
    prompt: { chunks: [{ type: "encoded_text", tokens: Array.from(request.promptIds) }] },
    sampling_params: {
      max_tokens: request.maxTokens,
      temperature: sampling.temperature,
      top_p: sampling.topP,
      top_k: sampling.topK === 0 ? -1 : sampling.topK,
      stop: request.endIds ?? [],
      ...(seed === undefined ? {} : { seed: seed + choiceIndex }),
    },
    prompt_logprobs: false,
    topk_prompt_logprobs: 0,
  };
}
