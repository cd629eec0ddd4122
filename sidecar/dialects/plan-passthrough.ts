import { captureMembers, readClientAsked, streamEdits } from "./capture-edits.ts";
import type { ClientAsked, RequestSettings } from "./dialect.ts";
import type { ObjectScan } from "./json-scan.ts";
import { asString, type JsonRecord, type JsonValue, parseJson } from "./json-value.ts";
import { samplingOf } from "./sampling-json.ts";
import { type MemberEdit, scanRequest, spliceScanned } from "./splice-request.ts";

export interface PassthroughPlan {
  readonly upstreamBody: Buffer;
  readonly model: string | null;
  readonly wantsStream: boolean;
  readonly upstreamStreams: boolean;
  readonly clientAsked: ClientAsked;
  readonly captured: boolean;
  readonly samplingJson: string;
}

const membersThatMatter: ReadonlySet<string> = new Set([
  "model",
  "stream",
  "stream_options",
  "logprobs",
  "top_logprobs",
  "return_token_ids",
]);
const nothing: Readonly<Record<string, JsonValue>> = {};

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
  const sampling = settings.sampling ?? nothing;
  if (settings.model !== undefined) edits["model"] = { set: settings.model };
  for (const key in sampling) edits[key] = { set: sampling[key] as JsonValue };
  if (captures) {
    const members = captureMembers(settings.engine, api, request);
    for (const key in members) edits[key] = { set: members[key] as JsonValue };
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
    samplingJson: samplingOf(body, root, spliced === undefined ? nothing : sampling),
  };
}

/** The few top-level members that decide something, without parsing the messages. */
function readMembers(body: Buffer, object: ObjectScan | undefined): JsonRecord {
  const members: Record<string, JsonValue> = {};
  if (object === undefined) return members;
  for (const { key, value } of object.members) {
    if (!membersThatMatter.has(key)) continue;
    const parsed = parseJson(body.toString("utf8", value.start, value.end));
    // The last of several, as the engine would see it.
    if (parsed === undefined) delete members[key];
    else members[key] = parsed;
  }
  return members;
}
