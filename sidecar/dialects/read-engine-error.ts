import { asNumber, asRecord, asText, type JsonRecord, parseJson } from "./json-value.ts";

/** What an engine says went wrong, in whatever shape it says it. */
export interface EngineError {
  readonly message: string;
  /** The HTTP status that the engine names inside its error, where it does. */
  readonly status: number | undefined;
  readonly code: string | undefined;
}

/** How many tokens were too many. */
export interface ContextOverflow {
  readonly limitTokens: number | undefined;
  readonly requestedTokens: number | undefined;
}

/** `{error: {message, code}}`, `{error: "text"}`, vLLM's older `{object: "error", message, code}`. */
export function readEngineError(root: JsonRecord): EngineError | undefined {
  const error = root["error"];
  const isFlat = root["object"] === "error";
  if ((error === undefined || error === null || error === false) && !isFlat) return undefined;
  const object = asRecord(error) ?? (isFlat ? root : {});
  const message = asText(object["message"]) ?? asText(error) ?? "the engine reported an error";
  const status = asNumber(object["code"]) ?? asNumber(object["status"]);
  return {
    message,
    status: status !== undefined && status >= 400 && status < 600 ? status : undefined,
    code: asText(object["code"]) ?? asText(object["type"]),
  };
}

/** The message of an error answer's body: JSON in any of the shapes above, or plain text. */
export function readErrorBody(body: Buffer): EngineError {
  const text = body.toString("utf8");
  const root = asRecord(parseJson(text));
  const known = root === undefined ? undefined : readEngineError(root);
  if (known !== undefined) return known;
  const message = asText(root?.["message"]) ?? asText(root?.["detail"]) ?? text.trim();
  return {
    message: message === "" ? "the engine gave no reason" : message,
    status: undefined,
    code: undefined,
  };
}

/** Engines have no common code for a prompt that is too long; their messages do say it. */
export function readContextOverflow(error: EngineError): ContextOverflow | undefined {
  const { message, code } = error;
  const isOverflow =
    code === "context_length_exceeded" ||
    /maximum context length|context length of|exceeds? the (?:model's )?(?:maximum )?context|longer than the model's context|prompt is too long/i.test(
      message,
    );
  if (!isOverflow) return undefined;
  const limit = /(?:context length(?: is| of)?|maximum of|context window of)\s+(\d+)/i.exec(
    message,
  );
  const requested =
    /(?:requested|has|contains|prompt of|input of|\()\s*(?:about )?(\d+)\s+(?:input )?tokens/i.exec(
      message.replace(limit?.[0] ?? "", ""),
    );
  return {
    limitTokens: limit === null ? undefined : Number(limit[1]),
    requestedTokens: requested === null ? undefined : Number(requested[1]),
  };
}
