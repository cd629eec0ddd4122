import { readErrorBody } from "../dialects/read-engine-error.ts";

const maxReasonLength = 300;

/**
 * "status-400: the chat template …": what is wrong with an engine that refuses the canary, in its
 * own words, on one line. An engine that refuses a key may repeat it: then the status alone.
 */
export function statusProblem(status: number, body: Buffer): string {
  if (status === 401 || status === 403) return `status-${status}`;
  const reason = readErrorBody(body).message.replace(/\s+/g, " ");
  const isLong = reason.length > maxReasonLength;
  return `status-${status}: ${isLong ? `${reason.slice(0, maxReasonLength)}…` : reason}`;
}
