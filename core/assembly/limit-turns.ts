import type { OverLengthPolicy } from "./assembly-options.ts";
import type { Turn } from "./link-turns.ts";

export interface LimitedTurns {
  /** The turns that stay, in order of time; a turn never stays without its parent. */
  readonly turns: readonly Turn[];
  /** Responses left out because their prompt alone fills the row. */
  readonly prompt: number;
  /** Responses cut, or left out because they cross the limit. */
  readonly response: number;
  /** Response tokens given up. */
  readonly lostTokens: number;
}

/**
 * Applies a row limit to the turns, before rows are cut. Positions are the same in every row that
 * holds a turn, so the outcome does not depend on how turns are spread over rows.
 */
export function limitTurns(
  turns: readonly Turn[],
  maxRowTokens: number,
  policy: OverLengthPolicy,
): LimitedTurns {
  if (policy === "drop-row") return { turns, prompt: 0, response: 0, lostTokens: 0 };
  const kept: Turn[] = [];
  let prompt = 0;
  let response = 0;
  let lostTokens = 0;
  for (const turn of turns) {
    if (turn.trainedEnd <= maxRowTokens) {
      kept.push(turn);
      continue;
    }
    const hasRoom = turn.start < maxRowTokens;
    if (hasRoom) response++;
    else prompt++;
    if (policy === "truncate" && hasRoom) {
      lostTokens += turn.trainedEnd - maxRowTokens;
      turn.trainedEnd = maxRowTokens;
      kept.push(turn);
    } else {
      lostTokens += turn.trainedEnd - turn.start;
    }
  }
  return { turns: kept, prompt, response, lostTokens };
}
