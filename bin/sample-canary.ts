import { OutriggerError } from "../core/outrigger-error.ts";
import type { TrainingSample } from "../core/sample.ts";
import type { PolicyEndpoint } from "../core/trainer-backend.ts";

const prompt = "Say a number.";
const maxTokens = 8;

interface CanaryBody {
  readonly prompt_token_ids?: readonly number[];
  readonly choices?: readonly {
    readonly token_ids?: readonly number[];
    readonly logprobs?: { readonly content?: readonly { readonly logprob: number }[] } | null;
    readonly policy_versions?: readonly { readonly version: number }[];
  }[];
  readonly error?: { readonly message?: string };
}

/**
 * A short chat completion of a policy as a training sample with this advantage; refuses one without
 * ids, without logprobs, or of another version than the endpoint says.
 */
export async function sampleCanary(
  endpoint: PolicyEndpoint,
  advantage: number,
): Promise<TrainingSample> {
  const response = await fetch(`${endpoint.url}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      model: endpoint.model,
      messages: [{ role: "user", content: prompt }],
      max_tokens: maxTokens,
      temperature: 1,
      logprobs: true,
      top_logprobs: 0,
      return_token_ids: true,
    }),
    signal: AbortSignal.timeout(120_000),
  });
  const body = (await response.json()) as CanaryBody;
  const choice = body.choices?.[0];
  const promptIds = body.prompt_token_ids;
  const ids = choice?.token_ids;
  const logprobs = choice?.logprobs?.content?.map(({ logprob }) => logprob);
  if (promptIds === undefined || ids === undefined || logprobs?.length !== ids.length) {
    const why = body.error?.message ?? "token ids or logprobs are missing";
    throw unusable(endpoint, `${response.status}: ${why}`);
  }
  const versions = new Set(choice?.policy_versions?.map(({ version }) => version));
  if (versions.size > 0 && !(versions.size === 1 && versions.has(endpoint.version))) {
    throw unusable(endpoint, `it serves version ${[...versions].join(", ")}`);
  }
  return buildSample(promptIds, ids, logprobs, endpoint.version, advantage);
}

const unusable = (endpoint: PolicyEndpoint, message: string): OutriggerError =>
  new OutriggerError(
    "engine-unusable",
    `the policy at ${endpoint.url} (version ${endpoint.version}) cannot be trained with: ${message}`,
    { origin: "engine", hint: "It must return token ids and logprobs (return_token_ids)." },
  );

function buildSample(
  promptIds: readonly number[],
  ids: readonly number[],
  logprobs: readonly number[],
  version: number,
  advantage: number,
): TrainingSample {
  const start = promptIds.length;
  const tokenIds = Int32Array.from([...promptIds, ...ids]);
  const row = <T>(valueOf: (index: number) => T, elsewhere: T): T[] =>
    Array.from(tokenIds, (_, t) => (t < start ? elsewhere : valueOf(t - start)));
  return {
    rolloutId: "check",
    attemptId: "0",
    groupId: "check",
    tokenIds,
    lossMask: Uint8Array.from(row(() => 1, 0)),
    samplingLogprobs: Float32Array.from(row((i) => logprobs[i] as number, Number.NaN)),
    policyVersions: Int32Array.from(row(() => version, -1)),
    advantages: Float32Array.from(row(() => advantage, 0)),
    weights: Float32Array.from(row(() => 1 / ids.length, 0)),
    callIds: ["check"],
  };
}
