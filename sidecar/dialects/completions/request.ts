import type { RequestSettings } from "../dialect.ts";
import { type PassthroughPlan, planPassthrough } from "../plan-passthrough.ts";

export const completionsPath = "/v1/completions";

/** Text completions need no translation; a prompt of token ids goes as it is. */
export function planCompletionsRequest(body: Buffer, settings: RequestSettings): PassthroughPlan {
  return planPassthrough(body, "completions", settings);
}
