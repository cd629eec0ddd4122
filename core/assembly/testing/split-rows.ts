import type { AssembledSample } from "../assembled-sample.ts";
import { type Random, shuffled } from "./random.ts";

/**
 * Cuts rows into more rows in which each token is still trained once, also inside a response, and
 * shuffles them: another way to lay out the same rollouts.
 */
export function splitRows(samples: readonly AssembledSample[], random: Random): AssembledSample[] {
  const split = samples.flatMap((sample) => {
    const spans = sample.spans.flatMap((span) => {
      const cut = span.start + random.below(span.end - span.start + 1);
      const parts = [
        { ...span, end: cut },
        { ...span, start: cut },
      ];
      return random.chance(0.5) ? parts.filter(({ start, end }) => start < end) : [span];
    });
    const places = spans.map(() => random.below(3));
    return [0, 1, 2].flatMap((place) => {
      const own = spans.filter((_, i) => places[i] === place);
      return own.length === 0 ? [] : [maskOthers(sample, own)];
    });
  });
  return shuffled(split, random);
}

function maskOthers(sample: AssembledSample, spans: AssembledSample["spans"]): AssembledSample {
  const lossMask = new Uint8Array(sample.lossMask.length);
  for (const { start, end } of spans) lossMask.fill(1, start, end);
  return {
    ...sample,
    spans,
    lossMask,
    samplingLogprobs: sample.samplingLogprobs.map((x, i) => (lossMask[i] === 1 ? x : Number.NaN)),
    policyVersions: sample.policyVersions.map((x, i) => (lossMask[i] === 1 ? x : -1)),
    callIds: spans.map((span) => span.call.callId),
  };
}
