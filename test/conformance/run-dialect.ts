import type {
  Dialect,
  DialectStream,
  PlannedCall,
  RequestSettings,
} from "../../sidecar/dialects/dialect.ts";
import type { JsonRecord } from "../../sidecar/dialects/json-value.ts";
import { createSseDecoder } from "../../sidecar/sse/sse-decoder.ts";

/** Settings with counted ids: `msg_1`, `toolu_2`, …, so that outputs can be written down. */
export function testSettings(change: Partial<RequestSettings> = {}): RequestSettings {
  let count = 0;
  return {
    engine: { kind: "vllm", streamsIds: true },
    capture: true,
    requestId: "c7",
    newId: (prefix) => {
      count += 1;
      return `${prefix}${count}`;
    },
    nowMs: () => 1_700_000_000_000,
    ...change,
  };
}

export function plan(
  dialect: Dialect,
  body: unknown,
  change: Partial<RequestSettings> = {},
): PlannedCall {
  const bytes = Buffer.from(typeof body === "string" ? body : JSON.stringify(body));
  const planned = dialect.planCall(bytes, testSettings(change));
  if (planned.kind === "refused") throw new Error(`refused: ${planned.reply.body.toString()}`);
  return planned;
}

/** The engine's request as an object. */
export function upstreamRequest(planned: PlannedCall): JsonRecord {
  return JSON.parse(planned.upstreamBody.toString()) as JsonRecord;
}

/** Lines of an engine's stream: objects become `data:` events, strings stand as they are. */
export function engineStream(lines: readonly (object | string)[]): Buffer {
  return Buffer.from(
    lines
      .map((line) => `data: ${typeof line === "string" ? line : JSON.stringify(line)}\n\n`)
      .join(""),
  );
}

export type StreamEnd = "eof" | "reset" | "open";

/** Feeds bytes, cut at the given sizes (repeated), to a stream; returns what the harness gets. */
export function relay(
  stream: DialectStream,
  bytes: Buffer,
  end: StreamEnd = "eof",
  sizes: readonly number[] = [bytes.length],
): string {
  const decoder = createSseDecoder();
  const out: Buffer[] = [];
  for (let at = 0, turn = 0; at < bytes.length; turn += 1) {
    const size = Math.max(1, sizes[turn % sizes.length] ?? bytes.length);
    for (const block of decoder.push(bytes.subarray(at, at + size))) out.push(stream.push(block));
    at += size;
  }
  if (end === "reset") out.push(stream.fail({ kind: "reset", message: "socket hang up" }));
  if (end === "eof") {
    const tail = decoder.end();
    if (tail !== null) out.push(stream.push(tail));
    out.push(stream.end());
  }
  return Buffer.concat(out).toString();
}

/** The events that a harness's SDK would see, as `[name, data]`. */
export function readEvents(text: string): [name: string | null, data: JsonRecord][] {
  return createSseDecoder()
    .push(Buffer.from(text))
    .filter((block) => block.data !== null && !block.isDone)
    .map((block) => [block.event, block.json() as JsonRecord]);
}
