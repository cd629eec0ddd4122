import { setMaxListeners } from "node:events";
import { linkedAbort } from "../../../runtime/linked-abort.ts";
import type { Compute } from "../../native/compute/compute.ts";
import type { PolicyModel } from "../../native/model/load-model.ts";
import type { NamedWeights } from "../../native/model/named-weights.ts";
import { createChoice } from "../../native/serving/choice.ts";
import type { PolicyEngine } from "../../native/serving/policy-engine.ts";
import { badInput } from "./request-error.ts";
import type { SampleInput } from "./request-schemas.ts";

type Json = Readonly<Record<string, unknown>>;

export interface WeightsSamplerOptions {
  readonly compute: Compute;
  readonly engine: PolicyEngine;
  readonly model: PolicyModel;
  /** The weights of a `tinker://` path; of the start model for the empty path. */
  readonly load: (path: string) => Promise<NamedWeights>;
}

/**
 * Samples from any saved weights with one engine. Requests for the weights that it holds run
 * together; one for others waits until those have ended, the engine takes the other weights, and
 * so on in the order in which the requests came.
 */
export interface WeightsSampler {
  sample(path: string, input: SampleInput, signal: AbortSignal): Promise<Json>;
}

export function createWeightsSampler(options: WeightsSamplerOptions): WeightsSampler {
  const { compute, engine, model, load } = options;
  interface Waiter {
    readonly path: string;
    readonly resolve: () => void;
    readonly reject: (error: unknown) => void;
  }
  const queue: Waiter[] = [];
  let held = "";
  let running = 0;
  let isSwapping = false;

  const pump = (): void => {
    while (!isSwapping && queue.length > 0) {
      const head = queue[0] as Waiter;
      if (head.path === held) {
        queue.shift();
        running += 1;
        head.resolve();
      } else if (running === 0) {
        isSwapping = true;
        void swap(head);
      } else return;
    }
  };

  const swap = async (head: Waiter): Promise<void> => {
    try {
      const weights = await load(head.path);
      await engine.publish(async () => {
        await compute.setWeights(weights);
        return engine.version + 1;
      });
      held = head.path;
    } catch (error) {
      queue.splice(queue.indexOf(head), 1);
      head.reject(error);
    } finally {
      isSwapping = false;
      pump();
    }
  };

  const withWeights = async <T>(path: string, use: () => Promise<T>): Promise<T> => {
    await new Promise<void>((resolve, reject) => {
      queue.push({ path, resolve, reject });
      pump();
    });
    try {
      return await use();
    } finally {
      running -= 1;
      pump();
    }
  };

  const sampleOne = async (
    promptIds: Int32Array,
    input: SampleInput,
    choiceIndex: number,
    signal: AbortSignal,
  ): Promise<Json> => {
    const { max_tokens, seed, stop, temperature, top_k, top_p } = input.sampling_params;
    const stops = typeof stop === "string" ? [stop] : (stop ?? undefined);
    const stopIds = stops?.filter((one) => typeof one === "number");
    const choice = createChoice({
      tokenizer: model.tokenizer,
      // Given ids say what ends a sequence, none of them included.
      endIds: stops !== undefined && stopIds?.length === stops.length ? new Set() : model.endIds,
      stopIds: new Set(stopIds),
      stopStrings: stops?.filter((one) => typeof one === "string") ?? [],
      parsesToolCalls: false,
    });
    await engine.generate(
      {
        promptIds,
        sampling: { temperature, topP: top_p, topK: Math.max(0, top_k) },
        maxTokens: max_tokens ?? engine.maxLength - promptIds.length,
        seed: seed ?? undefined,
        choiceIndex,
        onToken: (token) => choice.accept(token).isEnded,
      },
      signal,
    );
    const { end } = choice.finish();
    return {
      stop_reason: end.finishReason === "length" ? "length" : "stop",
      tokens: choice.tokens.map(({ id }) => id),
      logprobs: choice.tokens.map(({ logprob }) => logprob),
    };
  };

  /** Between two steps of the engine, which then forgets its caches. */
  const promptLogprobs = async (promptIds: Int32Array): Promise<(number | null)[]> => {
    let own: Float32Array | undefined;
    await engine.publish(async () => {
      [own] = await compute.logprobs([promptIds], 1);
      return engine.version;
    });
    return Array.from(own as Float32Array, (v, t) => (t === 0 ? null : v));
  };

  return {
    sample: async (path, input, signal) => {
      const promptIds = Int32Array.from(input.prompt.chunks.flatMap((chunk) => chunk.tokens));
      checkPrompt(promptIds, input, model, engine.maxLength);
      return withWeights(path, async () => {
        const abort = linkedAbort(signal);
        // One listener per sample is no leak.
        setMaxListeners(0, abort.signal);
        try {
          const wanted = Array.from({ length: input.num_samples }, (_, i) =>
            sampleOne(promptIds, input, i, abort.signal),
          );
          const sequences = await Promise.all(wanted);
          const more =
            input.prompt_logprobs === true
              ? { prompt_logprobs: await promptLogprobs(promptIds) }
              : {};
          return { type: "sample", sequences, ...more };
        } catch (error) {
          abort.abort(error);
          throw error;
        } finally {
          abort.release();
        }
      });
    },
  };
}

function checkPrompt(
  promptIds: Int32Array,
  { sampling_params: { max_tokens } }: SampleInput,
  { config: { vocabSize } }: PolicyModel,
  maxLength: number,
): void {
  if (promptIds.length === 0) throw badInput("prompt: no tokens");
  const wrong = promptIds.find((id) => id >= vocabSize);
  if (wrong !== undefined) {
    throw badInput(`prompt: token ${wrong} is not in the vocabulary of ${vocabSize}`);
  }
  const wanted = promptIds.length + (max_tokens ?? 1);
  if (wanted > maxLength) {
    throw badInput(`prompt and max_tokens are ${wanted} tokens, the model takes ${maxLength}`);
  }
}
