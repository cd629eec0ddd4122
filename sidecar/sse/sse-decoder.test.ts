import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { SseBlock } from "./sse-block.ts";
import { createSseDecoder } from "./sse-decoder.ts";

function decode(chunks: readonly Uint8Array[], maxBlockBytes?: number): SseBlock[] {
  const decoder = createSseDecoder(maxBlockBytes === undefined ? {} : { maxBlockBytes });
  const blocks = chunks.flatMap((chunk) => decoder.push(chunk));
  const tail = decoder.end();
  return tail === null ? blocks : [...blocks, tail];
}

function events(blocks: readonly SseBlock[]): string[][] {
  return blocks
    .filter((block) => block.data !== null)
    .map((block) => [block.event ?? "", String(block.data), String(block.terminated)]);
}

function decodeText(text: string): string[][] {
  return events(decode([Buffer.from(text)]));
}

/** Cuts `bytes` at the given places. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const sorted = [...places].sort((a, b) => a - b);
  return [...sorted, bytes.length].map((end, index) => bytes.subarray(sorted[index - 1] ?? 0, end));
}

describe("SSE framing", () => {
  it.each([
    [
      "LF",
      'data: {"a":1}\n\ndata: [DONE]\n\n',
      [
        ["", '{"a":1}', "true"],
        ["", "[DONE]", "true"],
      ],
    ],
    [
      "CRLF",
      "data: 1\r\n\r\ndata: 2\r\n\r\n",
      [
        ["", "1", "true"],
        ["", "2", "true"],
      ],
    ],
    [
      "CR",
      "data: 1\r\rdata: 2\r\r",
      [
        ["", "1", "true"],
        ["", "2", "true"],
      ],
    ],
    [
      "mixed line ends",
      "event: e\r\ndata: 1\n\r\ndata: 2\r\n\n",
      [
        ["e", "1", "true"],
        ["", "2", "true"],
      ],
    ],
    ["no space after the colon", "data:1\n\n", [["", "1", "true"]]],
    ["only one space is stripped", "data:  1\n\n", [["", " 1", "true"]]],
    ["comments alone and inside", ": ping\n\ndata: 1\n: in\n\n", [["", "1", "true"]]],
    ["multi-line data", "data: {\ndata: }\n\n", [["", "{\n}", "true"]]],
    ["data without a colon is an empty line", "data\n\n", [["", "", "true"]]],
    ["other fields", "id: 7\nretry: 5\ndatax: 9\ndata: 1\n\n", [["", "1", "true"]]],
    [
      "last event without a blank line",
      "data: 1\n\ndata: 2\n",
      [
        ["", "1", "true"],
        ["", "2", "false"],
      ],
    ],
    ["last line without an end", "data: 2", [["", "2", "false"]]],
    ["byte order mark", "\uFEFFdata: 1\n\n", [["", "1", "true"]]],
    ["byte order mark only at the start", "data: 1\n\n\uFEFFdata: 2\n\n", [["", "1", "true"]]],
    [
      "doubled DONE",
      "data: [DONE]\n\ndata: [DONE]\n\n",
      [
        ["", "[DONE]", "true"],
        ["", "[DONE]", "true"],
      ],
    ],
    ["U+2028 is no line end", "data: a\u2028b\n\n", [["", "a\u2028b", "true"]]],
    ["empty lines", "\n\n\r\ndata: 1\n\n", [["", "1", "true"]]],
  ])("%s", (_name, text, expected) => {
    expect(decodeText(text)).toEqual(expected);
  });

  it("gives byte ranges of single-line data", () => {
    const [block] = decode([Buffer.from("event: x\ndata: é{}\n\n")]);
    expect(block?.raw.subarray(block.dataStart, block.dataStart + 4).toString()).toBe("é{}");
  });

  it("hands a CR-terminated block over without waiting for a line feed", () => {
    const decoder = createSseDecoder();
    expect(events(decoder.push(Buffer.from("data: 1\r\n\r")))).toEqual([["", "1", "true"]]);
    const rest = decoder.push(Buffer.from("\ndata: 2\r\n\r\n"));
    expect(rest.map((block) => String(block.raw))).toEqual(["\n", "data: 2\r\n\r\n"]);
  });

  it("gives the same events, and every byte, for every chunking", () => {
    const piece = fc.constantFrom(
      "data: ",
      "data:",
      "data",
      "event: a",
      ": c",
      "\n",
      "\r",
      "\r\n",
      "\n\n",
      "\r\n\r\n",
      "\r\r",
      '{"x":"é😀"}',
      "[DONE]",
      "x",
      " ",
      ":",
      "\uFEFF",
      "\u2028",
    );
    fc.assert(
      fc.property(
        fc.array(piece, { maxLength: 40 }),
        fc.array(fc.nat(), { maxLength: 30 }),
        (pieces, places) => {
          const bytes = Buffer.from(pieces.join(""));
          const whole = decode([bytes]);
          const parts = decode(
            cut(
              bytes,
              places.map((place) => place % (bytes.length + 1)),
            ),
          );
          expect(events(parts)).toEqual(events(whole));
          expect(Buffer.concat(parts.map((block) => block.raw)).equals(bytes)).toBe(true);
          const single = decode([...bytes].map((byte) => Uint8Array.of(byte)));
          expect(events(single)).toEqual(events(whole));
        },
      ),
      { numRuns: 1500 },
    );
  });

  it("reads a 5 MB event in 1-byte to 64 KB chunks with work linear in its bytes", () => {
    const bytes = Buffer.from(`data: ${JSON.stringify("é".repeat(2_500_000))}\n\n`);
    for (const size of [7, 65_536]) {
      const chunks: Buffer[] = [];
      for (let at = 0; at < bytes.length; at += size) chunks.push(bytes.subarray(at, at + size));
      const blocks = decode(chunks);
      expect(blocks).toHaveLength(1);
      expect(blocks[0]?.data?.length).toBe(bytes.length - 8);
    }
  });

  it("refuses an endless line once it passes the cap", () => {
    const decoder = createSseDecoder({ maxBlockBytes: 1000 });
    decoder.push(Buffer.alloc(1000, "x"));
    expect(decoder.bufferedBytes).toBe(1000);
    expect(() => decoder.push(Buffer.from("x"))).toThrowError(
      expect.objectContaining({ reason: "sse-block-too-large", origin: "engine" }),
    );
  });

  it("parses JSON once and reads NaN as null", () => {
    const [block] = decode([Buffer.from('data: {"logprob": NaN, "s": "NaN \\" Infinity"}\n\n')]);
    expect(block?.json()).toEqual({ logprob: null, s: 'NaN " Infinity' });
    expect(block?.json()).toBe(block?.json());
  });
});
