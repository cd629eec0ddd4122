import type { AssembledSample } from "../assembly/assembled-sample.ts";
import { OutriggerError } from "../outrigger-error.ts";
import type { Weighting } from "./weighting.ts";

/** What a step holds, counted once before any weight is given. */
interface StepTotals {
  readonly tokensOfRollout: ReadonlyMap<string, number>;
  readonly tokensOfCall: ReadonlyMap<string, number>;
  readonly tokensOfRow: readonly number[];
  readonly rows: number;
  readonly tokens: number;
}

/**
 * The loss weight of each token of a step's rows, in the shape of the rows; 0 where the loss mask
 * is 0. All rows of the step must be given together: R, C, B and N are counted here.
 *
 * @throws OutriggerError `norm-tokens-invalid` for a constant norm that is not positive.
 */
export function tokenWeights(
  samples: readonly AssembledSample[],
  weighting: Weighting,
): Float32Array[] {
  if ("normTokens" in weighting && !(weighting.normTokens > 0)) {
    throw new OutriggerError(
      "norm-tokens-invalid",
      `${weighting.kind} needs a positive number of tokens, not ${weighting.normTokens}`,
      { origin: "user", hint: "Set it to the longest response that you allow." },
    );
  }
  const totals = countStep(samples);
  return samples.map((sample, row) => {
    const weights = new Float32Array(sample.tokenIds.length);
    for (const span of sample.spans) {
      const call = callKey(sample, span.call.callId);
      const counts = {
        ofRollout: totals.tokensOfRollout.get(sample.rolloutId) as number,
        ofCall: totals.tokensOfCall.get(call) as number,
        ofRow: totals.tokensOfRow[row] as number,
      };
      weights.fill(tokenWeight(weighting, totals, counts), span.start, span.end);
    }
    return weights;
  });
}

/** Trained tokens of the rollout, the response and the row that a token belongs to. */
interface TokenCounts {
  readonly ofRollout: number;
  readonly ofCall: number;
  readonly ofRow: number;
}

function tokenWeight(weighting: Weighting, totals: StepTotals, counts: TokenCounts): number {
  const rollouts = totals.tokensOfRollout.size;
  switch (weighting.kind) {
    case "rollout-mean":
      return 1 / (rollouts * counts.ofRollout);
    case "call-mean":
      return 1 / (totals.tokensOfCall.size * counts.ofCall);
    case "constant-norm":
      return 1 / (rollouts * weighting.normTokens);
    case "verl-token-sum":
      return 1;
    case "token-mean":
    case "verl-token-mean":
    case "trl-bnpo":
    case "trl-dapo":
      return 1 / totals.tokens;
    case "verl-seq-mean-token-mean":
    case "trl-grpo":
      return 1 / (totals.rows * counts.ofRow);
    case "agl-per-rollout-mean":
      return 1 / (totals.rows * counts.ofRollout);
    case "verl-seq-mean-token-sum":
      return 1 / totals.rows;
    case "verl-seq-mean-token-sum-norm":
    case "trl-dr-grpo":
      return 1 / (totals.rows * weighting.normTokens);
  }
}

function countStep(samples: readonly AssembledSample[]): StepTotals {
  const tokensOfRollout = new Map<string, number>();
  const tokensOfCall = new Map<string, number>();
  const tokensOfRow = samples.map((sample) => {
    let inRow = 0;
    for (const span of sample.spans) {
      const tokens = span.end - span.start;
      add(tokensOfRollout, sample.rolloutId, tokens);
      add(tokensOfCall, callKey(sample, span.call.callId), tokens);
      inRow += tokens;
    }
    return inRow;
  });
  const rows = tokensOfRow.filter((tokens) => tokens > 0).length;
  const tokens = tokensOfRow.reduce((sum, inRow) => sum + inRow, 0);
  return { tokensOfRollout, tokensOfCall, tokensOfRow, rows, tokens };
}

function callKey(sample: AssembledSample, callId: string): string {
  return JSON.stringify([sample.rolloutId, sample.attemptId, callId]);
}

function add(counts: Map<string, number>, key: string, tokens: number): void {
  counts.set(key, (counts.get(key) ?? 0) + tokens);
}
