import type { RequestSettings } from "../dialect.ts";
import { type PassthroughPlan, planPassthrough } from "../plan-passthrough.ts";

export const chatPath = "/v1/chat/completions";

/** Chat completions need no translation: the bytes go as they are, with the capture spliced in. */
export function planChatRequest(body: Buffer, settings: RequestSettings): PassthroughPlan {
  return planPassthrough(body, "chat", settings);
}
