import type { AssembledSample } from "../assembly/assembled-sample.ts";

/**
 * One line of a samples file, without the line end. All arrays but `callIds` have the row's length;
 * `samplingLogprobs` and `policyVersions` are null where no token is trained. Logprobs are written
 * as the calls gave them, in their full precision.
 */
export function encodeSample(sample: AssembledSample): string {
  const logprobs = Array.from<string>({ length: sample.tokenIds.length }).fill("null");
  const versions = Array.from<string>({ length: sample.tokenIds.length }).fill("null");
  for (const { call, start, end } of sample.spans) {
    for (let i = start; i < end; i++) {
      logprobs[i] = String(call.logprobs?.[i - start]);
      versions[i] = String(sample.policyVersions[i]);
    }
  }
  return [
    `{"rolloutId":${JSON.stringify(sample.rolloutId)}`,
    `"attemptId":${JSON.stringify(sample.attemptId)}`,
    `"tokenIds":[${sample.tokenIds.join()}]`,
    `"lossMask":[${sample.lossMask.join()}]`,
    `"samplingLogprobs":[${logprobs.join()}]`,
    `"policyVersions":[${versions.join()}]`,
    `"callIds":${JSON.stringify(sample.callIds)}}`,
  ].join(",");
}
