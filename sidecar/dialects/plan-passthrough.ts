import { captureMembers, readClientAsked, streamEdits } from "./capture-edits.ts";
import type { ClientAsked, RequestSettings } from "./dialect.ts";
import { lastMember, type ObjectScan } from "./json-scan.ts";
import { asString, type JsonRecord, type JsonValue, parseJson } from "./json-value.ts";
import { type MemberEdit, scanRequest, spliceScanned } from "./splice-request.ts";

export interface PassthroughPlan {
  readonly upstreamBody: Buffer;
  readonly model: string | null;
  readonly wantsStream: boolean;
  readonly upstreamStreams: boolean;
  readonly clientAsked: ClientAsked;
  readonly captured: boolean;
}

const membersThatMatter = [
  "model",
  "stream",
  "stream_options",
  "logprobs",
  "top_logprobs",
  "return_token_ids",
] as const;

/**
 * A chat or text completion request on its way to an engine that speaks the same API: only the
 * members that must change are spliced in. A body that is no JSON object goes as it came, so that
 * the engine itself says what is wrong with it.
 */
export function planPassthrough(
  body: Buffer,
  api: "chat" | "completions",
  settings: RequestSettings,
): PassthroughPlan {
  const root = scanRequest(body);
  const request = readMembers(body, root);
  const wantsStream = request["stream"] === true;
  const captures = settings.capture;
  const upstreamStreams = wantsStream && (settings.engine.streamsIds || !captures);
  const edits: Record<string, MemberEdit> = {};
  const set = (members: Readonly<Record<string, JsonValue>>) => {
    for (const [key, value] of Object.entries(members)) edits[key] = { set: value };
  };
  if (settings.model !== undefined) set({ model: settings.model });
  set(settings.sampling ?? {});
  if (captures) {
    set(captureMembers(settings.engine, api, request));
    if (wantsStream) Object.assign(edits, streamEdits(upstreamStreams));
  }
  const spliced = root === undefined ? undefined : spliceScanned(body, root, edits);
  return {
    upstreamBody: spliced ?? body,
    model: asString(request["model"]) ?? null,
    wantsStream,
    upstreamStreams: spliced === undefined ? wantsStream : upstreamStreams,
    clientAsked: readClientAsked(request, api),
    captured: captures && spliced !== undefined,
  };
}

/** The few top-level members that decide something, without parsing the messages. */
function readMembers(body: Buffer, object: ObjectScan | undefined): JsonRecord {
  const members: Record<string, JsonValue> = {};
  if (object === undefined) return members;
  for (const key of membersThatMatter) {
    const member = lastMember(object, key);
    if (member === undefined) continue;
    const value = parseJson(body.toString("utf8", member.value.start, member.value.end));
    if (value !== undefined) members[key] = value;
  }
  return members;
}
