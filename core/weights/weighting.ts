/**
 * How the token losses of one optimizer step add up: loss = Σ weight · token loss.
 * R rollouts with a trained token, C responses with one, B rows, N trained tokens in the step;
 * n of the rollout (n_r), the response (n_c) or the row (n_b).
 *
 * Row-independent (any split of rollouts into rows gives the same gradient):
 * - `rollout-mean`: 1 / (R · n_r), every rollout counts once. The default.
 * - `token-mean`: 1 / N.
 * - `call-mean`: 1 / (C · n_c), every response counts once.
 * - `constant-norm`: 1 / (R · L), L a constant number of tokens (Dr. GRPO).
 * - `verl-token-mean`, `verl-token-sum` (1), `trl-bnpo` and `trl-dapo` (1 / N over the step).
 *
 * Row-dependent, by the names that other frameworks use, for reproducing them:
 * - `verl-seq-mean-token-mean`, `trl-grpo`: 1 / (B · n_b).
 * - `verl-seq-mean-token-sum`: 1 / B.
 * - `verl-seq-mean-token-sum-norm`, `trl-dr-grpo`: 1 / (B · L).
 * - `agl-per-rollout-mean` (Agent Lightning 1.0): 1 / (B · n_r).
 */
export type Weighting =
  | {
      readonly kind:
        | "rollout-mean"
        | "token-mean"
        | "call-mean"
        | "verl-token-mean"
        | "verl-token-sum"
        | "trl-bnpo"
        | "trl-dapo"
        | "verl-seq-mean-token-mean"
        | "verl-seq-mean-token-sum"
        | "trl-grpo"
        | "agl-per-rollout-mean";
    }
  | {
      readonly kind: "constant-norm" | "verl-seq-mean-token-sum-norm" | "trl-dr-grpo";
      /** L, in tokens: usually the longest response or rollout allowed. */
      readonly normTokens: number;
    };

export type WeightingKind = Weighting["kind"];

const rowDependent: ReadonlySet<WeightingKind> = new Set([
  "verl-seq-mean-token-mean",
  "verl-seq-mean-token-sum",
  "verl-seq-mean-token-sum-norm",
  "trl-grpo",
  "trl-dr-grpo",
  "agl-per-rollout-mean",
] as const);

/** True where the gradient depends on how rollouts were cut into rows. */
export function isRowDependent(kind: WeightingKind): boolean {
  return rowDependent.has(kind);
}
