import type { Sample } from "../../sample.ts";
import type { TrueSampling } from "./random-attempt.ts";

/**
 * Holds rows against what really happened: each sampled token that is to be trained is trained
 * exactly once, with its own logprob and version, in exactly the context it was sampled in, and
 * nothing else is. Reads only the public arrays of a sample.
 */
export function findViolations(
  truth: readonly TrueSampling[],
  samples: readonly Sample[],
): string[] {
  const violations: string[] = [];
  const byCallId = new Map(truth.flatMap((one) => one.callIds.map((id) => [id, one] as const)));
  const timesTrained = new Map<TrueSampling, number>();
  samples.forEach((sample, row) => {
    const say = (problem: string) => violations.push(`row ${row}: ${problem}`);
    const explained = new Uint8Array(sample.tokenIds.length);
    for (const callId of sample.callIds) {
      const one = byCallId.get(callId);
      if (one === undefined) say(`call ${callId} never happened`);
      else {
        timesTrained.set(one, (timesTrained.get(one) ?? 0) + 1);
        checkCall(one, sample, explained, (problem) => say(`${callId}: ${problem}`));
      }
    }
    checkRest(sample, explained, say);
  });
  for (const one of truth) {
    const expected = one.isToBeTrained ? 1 : 0;
    const times = timesTrained.get(one) ?? 0;
    if (times !== expected) {
      violations.push(`${one.callIds.join()} trained ${times} times instead of ${expected}`);
    }
  }
  return violations;
}

function checkCall(
  one: TrueSampling,
  sample: Sample,
  explained: Uint8Array,
  say: (problem: string) => void,
): void {
  const context = [...one.prompt, ...one.response];
  const differing = context.findIndex((id, i) => sample.tokenIds[i] !== id);
  if (differing >= 0) say(`context differs at ${differing}`);
  one.response.forEach((_, i) => {
    const at = one.prompt.length + i;
    if (explained[at] === 1) say(`position ${at} belongs to two calls`);
    explained[at] = 1;
    if (sample.lossMask[at] !== 1) say(`position ${at} is not trained`);
    if (!Object.is(sample.samplingLogprobs[at], one.logprobs[i]))
      say(`logprob at ${at} is another's`);
    if (sample.policyVersions[at] !== one.versions[i]) say(`version at ${at} is another's`);
  });
}

function checkRest(sample: Sample, explained: Uint8Array, say: (problem: string) => void): void {
  const length = sample.tokenIds.length;
  const lengths = [sample.lossMask, sample.samplingLogprobs, sample.policyVersions];
  if (lengths.some((array) => array.length !== length)) say("arrays differ in length");
  if (!sample.lossMask.includes(1)) say("nothing is trained");
  for (let i = 0; i < length; i++) {
    if (explained[i] === 1) continue;
    if (sample.lossMask[i] !== 0) say(`position ${i} was not sampled`);
    if (!Number.isNaN(sample.samplingLogprobs[i])) say(`logprob at ${i} of an untrained token`);
    if (sample.policyVersions[i] !== -1) say(`version at ${i} of an untrained token`);
  }
}
