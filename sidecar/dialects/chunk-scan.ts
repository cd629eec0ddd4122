import type { MemberRange } from "./json-scan.ts";

/**
 * Where the members of one streamed chunk, or of a whole answer, stand in its bytes: found once,
 * when the relay takes out what the capture added, and used by the capture after the write.
 */
export interface ChunkScan {
  readonly members: readonly MemberRange[];
  /** Of each object in `choices`, in order. */
  readonly choices: readonly ChoiceScan[];
  /** Position of the closing brace. */
  readonly close: number;
}

export interface ChoiceScan {
  readonly members: readonly MemberRange[];
  /** Read on the way to their end; undefined where there are none in the plain form. */
  readonly logprobs: readonly number[] | undefined;
  /** It has a finish reason. */
  readonly isFinished: boolean;
}
