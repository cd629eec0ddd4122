import { captureMembers } from "./capture-edits.ts";
import type { RequestSettings, TranslationSettings } from "./dialect.ts";
import type { JsonRecord, JsonValue } from "./json-value.ts";
import { samplingJson } from "./sampling-json.ts";
import { stringifyJson } from "./stringify-json.ts";

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
  readonly samplingJson: string;
}

/**
 * Adds to a translated request what every one needs: model, sampling, stream, capture. Undefined
 * where it is nested too deeply to be written.
 */
export function finishTranslation(
  body: ChatBody,
  wantsStream: boolean,
  settings: RequestSettings,
): FinishedTranslation | undefined {
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
  const text = stringifyJson(whole);
  if (text === undefined) return undefined;
  const upstreamBody = Buffer.from(text);
  return {
    upstreamBody,
    wantsStream,
    upstreamStreams,
    captured: settings.capture,
    samplingJson: samplingJson(upstreamBody),
  };
}
