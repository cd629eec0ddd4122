import type { DialectName } from "../../sidecar/dialects/dialect.ts";
import { type Answer, type PostOptions, post } from "./post.ts";

const messages = [{ role: "user", content: "hi" }];

/** The smallest request of each dialect, all of them with the same prompt. */
export const dialectRequests: Readonly<
  Record<DialectName, { readonly path: string; readonly body: object }>
> = {
  chat: { path: "/v1/chat/completions", body: { model: "toy", messages } },
  completions: { path: "/v1/completions", body: { model: "toy", prompt: "hi" } },
  responses: { path: "/v1/responses", body: { model: "toy", input: "hi" } },
  messages: { path: "/v1/messages", body: { model: "toy", max_tokens: 99, messages } },
};

export const dialectNames = Object.keys(dialectRequests) as DialectName[];

/** Asks in one dialect; `more` goes into the request's body. */
export function askIn(
  dialect: DialectName,
  url: string,
  more: object = {},
  options: Omit<PostOptions, "path"> = {},
): Promise<Answer> {
  const { path, body } = dialectRequests[dialect];
  return post(url, JSON.stringify({ ...body, ...more }), { ...options, path });
}
