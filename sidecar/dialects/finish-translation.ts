import { captureMembers } from "./capture-edits.ts";
import type { RequestSettings, TranslationSettings } from "./dialect.ts";
import type { JsonRecord, JsonValue } from "./json-value.ts";

/** A chat completions request under construction. */
export type ChatBody = Record<string, JsonValue>;

export const defaultTranslation: TranslationSettings = {
  developerRole: "system",
  midConversationSystemRole: "system",
  maxTokensMember: undefined,
  reasoningMember: "drop",
  chatKeepAlive: "none",
};

export interface FinishedTranslation {
  readonly upstreamBody: Buffer;
  readonly wantsStream: boolean;
  readonly upstreamStreams: boolean;
  readonly captured: boolean;
}

/** Adds to a translated request what every one needs: model, sampling, stream, capture. */
export function finishTranslation(
  body: ChatBody,
  wantsStream: boolean,
  settings: RequestSettings,
): FinishedTranslation {
  const upstreamStreams = wantsStream && (settings.engine.streamsIds || !settings.capture);
  const stream: JsonRecord = upstreamStreams
    ? { stream: true, stream_options: { include_usage: true } }
    : {};
  const whole: JsonRecord = {
    ...body,
    ...(settings.model === undefined ? {} : { model: settings.model }),
    ...settings.sampling,
    ...stream,
    ...(settings.capture ? captureMembers(settings.engine, "chat", {}) : {}),
  };
  return {
    upstreamBody: Buffer.from(JSON.stringify(whole)),
    wantsStream,
    upstreamStreams,
    captured: settings.capture,
  };
}
