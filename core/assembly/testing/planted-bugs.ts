import type { Sample } from "../../sample.ts";
import type { Random } from "./random.ts";

/** Spoils rows as a bug in assembly would; null where the rows have no place for it. */
export type PlantedBug = (samples: readonly Sample[], random: Random) => readonly Sample[] | null;

/** Bugs that a check of assembled rows has to notice. */
export const plantedBugs: Readonly<Record<string, PlantedBug>> = {
  "mask one too far": inOneRow((sample) => {
    const lossMask = sample.lossMask.map((_, i) => sample.lossMask[i - 1] ?? 0);
    return { ...sample, lossMask };
  }),
  "first token of a response not trained": inOneRow((sample) => {
    return { ...sample, lossMask: sample.lossMask.with(sample.lossMask.indexOf(1), 0) };
  }),
  "a prompt token trained": inOneRow((sample) => {
    const place = sample.lossMask.indexOf(0);
    return place < 0 ? null : { ...sample, lossMask: sample.lossMask.with(place, 1) };
  }),
  "a dropped branch": (samples, random) =>
    samples.length < 2 ? null : samples.toSpliced(random.below(samples.length), 1),
  "a row twice": (samples, random) =>
    samples.length === 0 ? null : [...samples, samples[random.below(samples.length)] as Sample],
  "an ancestor trained in two rows": trainAncestorTwice,
  "logprobs of the neighbour": inOneRow((sample) => {
    const logprobs = sample.samplingLogprobs;
    const first = logprobs.findIndex(
      (x, i) => !Number.isNaN(x) && !Number.isNaN(logprobs[i + 1] ?? Number.NaN),
    );
    if (first < 0) return null;
    const swapped = logprobs
      .with(first, logprobs[first + 1] as number)
      .with(first + 1, logprobs[first] as number);
    return { ...sample, samplingLogprobs: swapped };
  }),
  "zero for a missing logprob": inOneRow((sample) => {
    const samplingLogprobs = sample.samplingLogprobs.map((x) => (Number.isNaN(x) ? 0 : x));
    return sample.lossMask.includes(0) ? { ...sample, samplingLogprobs } : null;
  }),
  "one version for the whole row": inOneRow((sample) => {
    const trained = sample.policyVersions.filter((version) => version >= 0);
    const [version] = trained;
    if (version === undefined || trained.every((one) => one === version)) return null;
    return { ...sample, policyVersions: sample.policyVersions.map((x) => (x < 0 ? x : version)) };
  }),
  "a context token changed": inOneRow((sample) => {
    return { ...sample, tokenIds: sample.tokenIds.with(0, 1_000_000) };
  }),
  "the end of a row cut": inOneRow((sample) => {
    const cut = sample.tokenIds.length - 1;
    return {
      ...sample,
      tokenIds: sample.tokenIds.slice(0, cut),
      lossMask: sample.lossMask.slice(0, cut),
      samplingLogprobs: sample.samplingLogprobs.slice(0, cut),
      policyVersions: sample.policyVersions.slice(0, cut),
    };
  }),
};

function inOneRow(spoil: (sample: Sample) => Sample | null): PlantedBug {
  return (samples, random) => {
    if (samples.length === 0) return null;
    const row = random.below(samples.length);
    const spoilt = spoil(samples[row] as Sample);
    return spoilt === null ? null : samples.with(row, spoilt);
  };
}

/** Copies the trained part of a row into another row that has it as context. */
function trainAncestorTwice(samples: readonly Sample[]): readonly Sample[] | null {
  for (const [i, sample] of samples.entries()) {
    const first = sample.lossMask.indexOf(1);
    const end = sample.lossMask.findIndex((mask, at) => at > first && mask === 0);
    const shared = sample.tokenIds.subarray(0, end < 0 ? sample.tokenIds.length : end);
    const j = samples.findIndex(
      (other, at) =>
        at !== i &&
        shared.every((id, at2) => other.tokenIds[at2] === id) &&
        other.lossMask.subarray(0, shared.length).every((mask) => mask === 0),
    );
    if (j < 0) continue;
    const other = samples[j] as Sample;
    const lossMask = other.lossMask.slice();
    const samplingLogprobs = other.samplingLogprobs.slice();
    const policyVersions = other.policyVersions.slice();
    lossMask.fill(1, first, shared.length);
    samplingLogprobs.set(sample.samplingLogprobs.subarray(first, shared.length), first);
    policyVersions.set(sample.policyVersions.subarray(first, shared.length), first);
    const callIds = [sample.callIds[0] as string, ...other.callIds];
    return samples.with(j, { ...other, lossMask, samplingLogprobs, policyVersions, callIds });
  }
  return null;
}
