import type { PolicyVersionSpan } from "../../core/call.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { PolicyEndpoint } from "../../core/trainer-backend.ts";

interface CompletionChoice {
  readonly text: string;
  readonly prompt_token_ids: number[];
  readonly token_ids: number[];
  readonly logprobs: { readonly token_logprobs: number[] };
  readonly policy_versions?: PolicyVersionSpan[];
}

export interface SampleOptions {
  /** Advantage of every sampled token; each has weight 1 / tokens. */
  readonly advantage: number;
  readonly maxTokens: number;
  readonly seed?: number;
  readonly temperature?: number;
}

/** Samples a completion from a served policy, as a training sample. */
export async function samplePolicy(
  endpoint: PolicyEndpoint,
  prompt: string,
  options: SampleOptions,
): Promise<{ readonly sample: TrainingSample; readonly versions: readonly PolicyVersionSpan[] }> {
  const response = await fetch(`${endpoint.url}/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      model: endpoint.model,
      prompt,
      max_tokens: options.maxTokens,
      seed: options.seed,
      temperature: options.temperature ?? 1,
      ignore_eos: true,
      logprobs: 0,
      return_token_ids: true,
    }),
  });
  const body = (await response.json()) as { choices?: CompletionChoice[] };
  const choice = body.choices?.[0];
  if (choice === undefined) throw new Error(`no completion: ${JSON.stringify(body)}`);
  return {
    sample: toSample(choice, prompt, options.advantage),
    versions: choice.policy_versions ?? [],
  };
}

function toSample(choice: CompletionChoice, prompt: string, advantage: number): TrainingSample {
  const start = choice.prompt_token_ids.length;
  const ids = [...choice.prompt_token_ids, ...choice.token_ids];
  const trained = <T>(value: (index: number) => T, elsewhere: T): T[] =>
    ids.map((_, t) => (t < start ? elsewhere : value(t - start)));
  return {
    rolloutId: `rollout of ${prompt}`,
    attemptId: "0",
    groupId: prompt,
    tokenIds: Int32Array.from(ids),
    lossMask: Uint8Array.from(trained(() => 1, 0)),
    samplingLogprobs: Float32Array.from(
      trained((i) => choice.logprobs.token_logprobs[i] as number, Number.NaN),
    ),
    policyVersions: Int32Array.from(trained(() => 0, -1)),
    advantages: Float32Array.from(trained(() => advantage, 0)),
    weights: Float32Array.from(trained(() => 1 / choice.token_ids.length, 0)),
    callIds: ["c0"],
  };
}
