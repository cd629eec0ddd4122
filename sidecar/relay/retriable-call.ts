import type { FinishedCall } from "../capture/finished-call.ts";
import type { EarlierCall } from "../retries/decide-retry.ts";
import type { AnswerLog } from "./answer-fan.ts";
import type { HarnessReply } from "./harness-reply.ts";

/** A request that a retry turned out to repeat, and when it came. */
export interface JoinedRequest {
  readonly requestId: string;
  readonly receivedAtMs: number;
  readonly reply: HarnessReply;
}

/** A call as its retries see it. */
export interface RetriableCall extends EarlierCall {
  /** Answered together with this call; recorded as its replay. */
  join(request: JoinedRequest): void;
  /** The answer that its harness never got. */
  readonly answer: AnswerLog | undefined;
  /** Its record, once it has ended. */
  readonly finished: FinishedCall | undefined;
}
