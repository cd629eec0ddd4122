import type { TrainingSample } from "../../core/sample.ts";
import { parsePromptLogprobs } from "./parse-sequence.ts";
import { isReason, type TinkerClient } from "./tinker-client.ts";
import type { ForwardBackwardInput, TensorData } from "./tinker-wire.ts";

type Json = Readonly<Record<string, unknown>>;

/** A training call under its sequence id. */
export type TrainingCall = (
  path: string,
  body: Json,
  seqId: number,
  signal: AbortSignal | undefined,
) => Promise<Json>;

/** Logprobs of whole rows, from the model in training and from the one that it started as. */
export interface RowLogprobs {
  /** The answer of `forward`; takes its body and nothing else. */
  readonly forward: TrainingCall;
  ofReference(
    rows: readonly TrainingSample[],
    signal: AbortSignal | undefined,
  ): Promise<Float32Array[]>;
}

/** Rows whose reference logprobs are asked for at once. */
const referenceRows = 32;

export function createRowLogprobs(options: {
  readonly client: TinkerClient;
  readonly baseModel: string;
  readonly train: TrainingCall;
}): RowLogprobs {
  const { client, baseModel, train } = options;
  let hasForward = true;

  /** As the prompt of a sample that is thrown away. */
  const readReference = async (
    { tokenIds }: TrainingSample,
    signal: AbortSignal | undefined,
  ): Promise<Float32Array> => {
    const body = {
      type: "sample",
      num_samples: 1,
      base_model: baseModel,
      prompt: { chunks: [{ type: "encoded_text", tokens: Array.from(tokenIds) }] },
      sampling_params: { max_tokens: 1, temperature: 1, seed: 0 },
      prompt_logprobs: true,
      topk_prompt_logprobs: 0,
    };
    const answer = await client.run("asample", body, { isRepeatable: true, signal });
    return parsePromptLogprobs(answer, tokenIds.length);
  };

  return {
    // SkyRL's server has no such route for JSON: there a backward pass of rows whose advantages are
    // 0 says the same, and adds nothing.
    forward: async (path, body, seqId, signal) => {
      if (hasForward) {
        try {
          return await train(path, body, seqId, signal);
        } catch (error) {
          if (!isRouteMissing(error)) throw error;
          hasForward = false;
        }
      }
      const input = body["forward_input"] as ForwardBackwardInput;
      const idle = { forward_backward_input: withoutAdvantages(input) };
      return train("forward_backward", idle, seqId, signal);
    },
    ofReference: async (rows, signal) => {
      const all: Float32Array[] = [];
      for (let start = 0; start < rows.length; start += referenceRows) {
        const some = rows.slice(start, start + referenceRows);
        all.push(...(await Promise.all(some.map((row) => readReference(row, signal)))));
      }
      return all;
    },
  };
}

/** FastAPI's words for a path that it does not serve; a model it does not know has others. */
function isRouteMissing(error: unknown): boolean {
  return (
    isReason(error, "tinker-not-found", "tinker-refused") &&
    /\b(404: Not Found|405: )/.test(error.message)
  );
}

function withoutAdvantages(input: ForwardBackwardInput): ForwardBackwardInput {
  const data = input.data.map((datum) => {
    const advantages = datum.loss_fn_inputs["advantages"] as TensorData;
    const zeros = { ...advantages, data: advantages.data.map(() => 0) };
    return { ...datum, loss_fn_inputs: { ...datum.loss_fn_inputs, advantages: zeros } };
  });
  return { ...input, data };
}
