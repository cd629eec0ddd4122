import type { EncodedReply } from "../dialects/dialect.ts";
import { asNumber, asRecord, parseJson } from "../dialects/json-value.ts";
import {
  countTokensPath,
  encodeCountTokens,
  planCountTokens,
} from "../dialects/messages/count-tokens.ts";
import { messagesDialect } from "../dialects/messages/messages-dialect.ts";
import type { Identity } from "../identity/identity.ts";
import { askEngine } from "../upstream/ask-engine.ts";
import type { RelayContext } from "./relay-context.ts";

const timeoutMs = 30_000;

/** `count_tokens`: the engine's own route where it has one, else its tokenizer route. */
export async function countTokens(
  context: RelayContext,
  identity: Identity,
  body: Buffer,
  signal: AbortSignal,
): Promise<EncodedReply> {
  const engine = context.engines.choose(identity.rolloutId, new Set());
  const unreachable = (message: string): EncodedReply =>
    messagesDialect.encodeError({ status: 503, reason: "engine-unreachable", message });
  if (engine === undefined) return unreachable("the sidecar knows no engine yet");
  const ask = (path: string, bytes: Buffer) =>
    askEngine(
      engine,
      { method: "POST", path: `${engine.basePath}${path}`, body: bytes },
      { signal, timeoutMs },
    );
  const own = await ask(countTokensPath, body);
  if (own.kind === "unreachable") return unreachable(own.message);
  if (own.status !== 404 && own.status !== 405 && !(own.status < 300 && !hasCount(own.body))) {
    const headers = { ...retryHints(own.rawHeaders), "content-type": "application/json" };
    return { status: own.status, headers, body: own.body };
  }
  const plan = planCountTokens(body, {
    engine: engine.profile,
    capture: false,
    ...(engine.model === undefined ? {} : { model: engine.model }),
    translation: context.translation,
    requestId: context.newId("count_"),
    newId: context.newId,
    nowMs: context.nowMs,
  });
  if (!("upstreamPath" in plan)) return plan;
  const answer = await ask(plan.upstreamPath, plan.upstreamBody);
  if (answer.kind === "unreachable") return unreachable(answer.message);
  const reply = { status: answer.status, headers: {}, body: answer.body };
  if (answer.status < 300) return encodeCountTokens(reply);
  const refusal = messagesDialect.encodeError({
    status: answer.status,
    reason: "engine-error",
    message: `the engine cannot count tokens: ${answer.body.toString("utf8", 0, 300)}`,
  });
  return { ...refusal, headers: { ...refusal.headers, ...retryHints(answer.rawHeaders) } };
}

/** What a harness acts on when it is refused. */
function retryHints(rawHeaders: readonly string[]): Record<string, string> {
  const hints: Record<string, string> = {};
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = (rawHeaders[at] as string).toLowerCase();
    if (hintNames.test(name)) hints[name] = rawHeaders[at + 1] as string;
  }
  return hints;
}

const hintNames =
  /^(?:retry-after(?:-ms)?|x-should-retry|(?:x|anthropic)-ratelimit-.*|(?:x-)?request-id)$/;

/** A router may answer any path with something. */
function hasCount(body: Buffer): boolean {
  return asNumber(asRecord(parseJson(body.toString("utf8")))?.["input_tokens"]) !== undefined;
}
