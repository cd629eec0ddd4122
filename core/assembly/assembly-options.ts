import type { DecodeIds } from "./classify-break.ts";

/**
 * What to do with a row that is longer than `maxRowTokens`. None of them moves a token out of the
 * context it was sampled in.
 *
 * - `truncate`: the row ends at the limit; a response that crosses it is trained up to there.
 * - `drop-call`: a response that crosses the limit is left out whole.
 * - `drop-row`: the row is left out; ancestors that another row holds are trained there.
 */
export type OverLengthPolicy = "truncate" | "drop-call" | "drop-row";

export interface AssemblyOptions {
  /** Train the calls that an adapter marked as side calls. Default false. */
  readonly includeSideCalls?: boolean;
  /** Longest row, in tokens; undefined for no limit. */
  readonly maxRowTokens?: number;
  /** Default `truncate`. */
  readonly overLength?: OverLengthPolicy;
  /** Decoder of the policy's tokenizer; without it no drift is absorbed. */
  readonly decode?: DecodeIds;
  /** Tokens of one response that may be given up to absorb drift; 0 turns it off. Default 4. */
  readonly maxDriftTokens?: number;
}
