import { describe, expect, it } from "vitest";
import { type CaptureResult, createCallCapture } from "../../sidecar/dialects/call-capture.ts";
import { chatDialect } from "../../sidecar/dialects/chat/chat-dialect.ts";
import { completionsDialect } from "../../sidecar/dialects/completions/completions-dialect.ts";
import type { Dialect } from "../../sidecar/dialects/dialect.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { createSseDecoder } from "../../sidecar/sse/sse-decoder.ts";
import { playScript } from "./play-script.ts";
import { plan, relay } from "./run-dialect.ts";
import { vllmScript } from "./vllm-script.ts";

/** How the same events may be written. `isExact`: what is not stripped stays byte for byte. */
interface Framing {
  readonly name: string;
  readonly write: (events: readonly string[]) => string;
  readonly isExact?: false;
}

const lines = (events: readonly string[], end: string, before = "data: "): string =>
  events.map((json) => `${before}${json}${end}${end}`).join("");

const framings: readonly Framing[] = [
  { name: "LF", write: (events) => lines([...events, "[DONE]"], "\n") },
  { name: "CRLF", write: (events) => lines([...events, "[DONE]"], "\r\n") },
  { name: "CR", write: (events) => lines([...events, "[DONE]"], "\r") },
  {
    name: "no space after the colon",
    write: (events) => lines([...events, "[DONE]"], "\n", "data:"),
  },
  {
    name: "comments between and inside",
    write: (events) => `: hello\n\n${lines([...events, "[DONE]"], "\n", ": still here\ndata: ")}`,
  },
  {
    name: "event names, ids and retry times",
    write: (events) => lines([...events, "[DONE]"], "\n", "event: chunk\nid: 7\nretry: 9\ndata: "),
  },
  {
    name: "data over several lines",
    // Between two members of the object, where JSON allows a line break.
    write: (events) =>
      lines(
        [...events.map((json) => json.replace(',"object"', ',\ndata: "object"')), "[DONE]"],
        "\n",
      ),
    isExact: false,
  },
  { name: "a byte order mark", write: (events) => `\uFEFF${lines([...events, "[DONE]"], "\n")}` },
  { name: "no [DONE]", write: (events) => lines(events, "\n") },
  { name: "[DONE] twice", write: (events) => lines([...events, "[DONE]", "[DONE]"], "\n") },
  {
    name: "a last event without its blank line",
    write: (events) => lines(events, "\n").slice(0, -2),
  },
];

const chunkings = [[1], [2, 3], [7], [1_000_000]];

const user = [{ role: "user", content: "hé 😀" }];
const streams = { stream: true, stream_options: { include_usage: true } };
const dialects: readonly [Dialect, object][] = [
  [chatDialect, { model: "m", messages: user, ...streams }],
  [completionsDialect, { model: "m", prompt: "hé 😀", ...streams }],
  [messagesDialect, { model: "m", max_tokens: 99, messages: user, stream: true }],
  [responsesDialect, { model: "m", input: "hé 😀", stream: true }],
];

/** The engine's events as JSON texts, without `[DONE]`. */
async function engineEvents(dialect: Dialect, body: object): Promise<string[]> {
  const script = vllmScript({
    answer: () => ({
      reasoning: "hm 😀",
      content: "été",
      toolCalls: [{ id: "call_1", name: "f", arguments: '{"a": "é"}' }],
    }),
    tokensPerChunk: 2,
  });
  const { upstreamBody, upstreamPath } = plan(dialect, body);
  const bytes = await playScript(script, upstreamBody, upstreamPath);
  return bytes
    .toString()
    .split("\n\n")
    .filter((block) => block.startsWith("data: {"))
    .map((block) => block.slice("data: ".length));
}

/** The data of every event, also of a last one without its blank line. */
function readAll(text: string): unknown[] {
  const decoder = createSseDecoder();
  const blocks = [...decoder.push(Buffer.from(text)), decoder.end()];
  return blocks.flatMap((block) =>
    block === null || block.data === null || block.isDone ? [] : [block.json()],
  );
}

function capture(bytes: Buffer, sizes: readonly number[]): CaptureResult {
  const decoder = createSseDecoder();
  const calls = createCallCapture();
  for (let at = 0, turn = 0; at < bytes.length; turn += 1) {
    const size = sizes[turn % sizes.length] ?? bytes.length;
    for (const block of decoder.push(bytes.subarray(at, at + size))) calls.addBlock(block);
    at += size;
  }
  const tail = decoder.end();
  if (tail !== null) calls.addBlock(tail);
  return calls.result();
}

describe.each(dialects)("the same events, however they are framed: $name", (dialect, body) => {
  const isTranslated = dialect === messagesDialect || dialect === responsesDialect;

  it.each(framings)("$name", async ({ write, isExact }) => {
    const events = await engineEvents(dialect, body);
    expect(events.length).toBeGreaterThan(3);
    const plainly = Buffer.from(lines([...events, "[DONE]"], "\n"));
    const seenPlainly = relay(plan(dialect, body).openStream(), plainly);
    const captured = capture(plainly, [plainly.length]);
    expect(captured.choices[0]?.incompleteReason).toBeUndefined();
    const bytes = Buffer.from(write(events));
    for (const sizes of chunkings) {
      const stream = plan(dialect, body).openStream();
      const seen = relay(stream, bytes, "eof", sizes);
      expect([stream.outcome, stream.isAnswered]).toEqual(["completed", true]);
      if (isTranslated) expect(seen).toBe(seenPlainly);
      else {
        const stripped = readAll(seenPlainly);
        expect(readAll(seen)).toEqual(stripped);
        // What the harness gets is what it would get if the engine had not been asked for ids.
        const shown = stripped.map((data) => JSON.stringify(data));
        if (isExact !== false) expect(seen).toBe(write(shown));
      }
      expect(capture(bytes, sizes)).toEqual(captured);
    }
  });

  it("an event of 5 MB", () => {
    const text = "é".repeat(2_500_000);
    const said = dialect === completionsDialect ? { text } : { delta: { content: text } };
    const event = { choices: [{ index: 0, ...said, token_ids: [7], finish_reason: "stop" }] };
    const bytes = Buffer.from(lines([JSON.stringify(event), "[DONE]"], "\n"));
    const stream = plan(dialect, body).openStream();
    const seen = relay(stream, bytes, "eof", [65_537]);
    expect(stream.outcome).toBe("completed");
    expect(seen).not.toContain("token_ids");
    // Not `toContain`: a difference would print it.
    expect(seen.includes(text)).toBe(true);
  });

  it("an error object inside the stream is no end of an answer", async () => {
    const [first = ""] = await engineEvents(dialect, body);
    const error = '{"error":{"message":"boom","code":500}}';
    for (const sizes of chunkings) {
      const stream = plan(dialect, body).openStream();
      const bytes = Buffer.from(lines([first, error], "\n"));
      const seen = relay(stream, bytes, "eof", sizes);
      expect(seen).toContain("boom");
      expect(stream.outcome).toBe("failed");
      expect(capture(bytes, sizes).choices[0]?.incompleteReason).toBe("engine-error");
    }
  });
});
