import type { Sample } from "../sample.ts";
import type { CapturedCall } from "./captured-call.ts";

/** One response trained in a row: the row's positions `[start, end)` hold its first tokens. */
export interface TrainedSpan {
  readonly call: CapturedCall;
  /** First position of the response in the row (the length of the call's prompt). */
  readonly start: number;
  /** One past the last trained position; below the response's end where drift or a limit cut it. */
  readonly end: number;
  /** Where the ids begin that are new since the parent's response; 0 without a parent. */
  readonly observationStart: number;
  /** Place of the call among the attempt's trained calls in order of time, from 0. */
  readonly turnIndex: number;
}

/** A sample that still knows which call each trained token came from. */
export interface AssembledSample extends Sample {
  /** The trained responses in row order; `callIds` names the same calls. */
  readonly spans: readonly TrainedSpan[];
}
