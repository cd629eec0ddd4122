import type { DialectName } from "../capture/finished-call.ts";
import { chatDialect } from "../dialects/chat/chat-dialect.ts";
import { completionsDialect } from "../dialects/completions/completions-dialect.ts";
import type { Dialect } from "../dialects/dialect.ts";
import { messagesDialect } from "../dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../dialects/responses/responses-dialect.ts";

export const dialectsByName: Readonly<Record<DialectName, Dialect>> = {
  chat: chatDialect,
  completions: completionsDialect,
  responses: responsesDialect,
  messages: messagesDialect,
};
