import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type MemberEdits, spliceRequest } from "./splice-request.ts";

function splice(text: string, edits: MemberEdits): string | undefined {
  return spliceRequest(Buffer.from(text), edits)?.toString();
}

const add: MemberEdits = { return_token_ids: { set: true } };
const usage: MemberEdits = { stream_options: { merge: { include_usage: { set: true } } } };

describe("spliceRequest", () => {
  it.each<[string, string, MemberEdits, string]>([
    ["appends", '{"a":1}', add, '{"a":1,"return_token_ids":true}'],
    ["appends to an empty object", " { } ", add, ' { "return_token_ids":true} '],
    ["keeps whitespace", '{\n  "a" : 1\n}\n', add, '{\n  "a" : 1\n,"return_token_ids":true}\n'],
    [
      "keeps big integers",
      '{"seed":12345678901234567890}',
      add,
      '{"seed":12345678901234567890,"return_token_ids":true}',
    ],
    ["keeps number spelling", '{"t":1.0e+0}', { model: { set: "m" } }, '{"t":1.0e+0,"model":"m"}'],
    [
      "keeps escapes and UTF-8",
      '{"a":"\\u00e9é\\"}{"}',
      add,
      '{"a":"\\u00e9é\\"}{","return_token_ids":true}',
    ],
    ["replaces in place", '{"model":"a","x":1}', { model: { set: "b" } }, '{"model":"b","x":1}'],
    ["replaces every duplicate", '{"m":1,"x":2,"m":3}', { m: { set: 9 } }, '{"m":9,"x":2,"m":9}'],
    ["finds an escaped key", '{"\\u006dodel":"a"}', { model: { set: "b" } }, '{"\\u006dodel":"b"}'],
    [
      "leaves nested namesakes",
      '{"x":{"model":1},"y":[{"model":2}]}',
      { model: { set: 3 } },
      '{"x":{"model":1},"y":[{"model":2}],"model":3}',
    ],
    ["removes the first", '{"a":1, "b":2}', { a: { remove: true } }, '{"b":2}'],
    ["removes the last", '{"a":1, "b":2 }', { b: { remove: true } }, '{"a":1 }'],
    ["removes the middle", '{"a":1, "b":2, "c":3}', { b: { remove: true } }, '{"a":1, "c":3}'],
    ["removes all", '{ "a":1, "b":2 }', { a: { remove: true }, b: { remove: true } }, "{  }"],
    ["removes all and appends", '{"a":1}', { a: { remove: true }, b: { set: 2 } }, '{"b":2}'],
    ["removes nothing that is not there", '{"a":1}', { b: { remove: true } }, '{"a":1}'],
    [
      "removes the tail and appends",
      '{"a":1,"b":2}',
      { b: { remove: true }, c: { set: 3 } },
      '{"a":1,"c":3}',
    ],
    [
      "merges into an object",
      '{"stream_options":{"x":1}}',
      usage,
      '{"stream_options":{"x":1,"include_usage":true}}',
    ],
    [
      "merges over a member",
      '{"stream_options":{"include_usage":false}}',
      usage,
      '{"stream_options":{"include_usage":true}}',
    ],
    [
      "merges over null",
      '{"stream_options":null}',
      usage,
      '{"stream_options":{"include_usage":true}}',
    ],
    ["merges into nothing", "{}", usage, '{"stream_options":{"include_usage":true}}'],
    [
      "knows prototype names as plain keys",
      '{"constructor":1}',
      add,
      '{"constructor":1,"return_token_ids":true}',
    ],
  ])("%s", (_name, text, edits, expected) => {
    expect(splice(text, edits)).toBe(expected);
  });

  it.each([
    "",
    "[]",
    "null",
    '{"a":1',
    '{"a" 1}',
    '{"a":1}x',
    "{a:1}",
    '{"a":}',
    "{,}",
    '"',
    '{"a":"',
  ])("leaves %j to the engine", (text) => {
    expect(splice(text, add)).toBeUndefined();
  });

  it("tells a key of 65,541 bytes that begins with a known name from that name", () => {
    const text = `{"model${"x".repeat(65_535)}l":1}`;
    expect(splice(text, { model: { set: "m" } })).toBe(`${text.slice(0, -1)},"model":"m"}`);
  });

  it("accepts a byte order mark", () => {
    expect(splice('\uFEFF{"a":1}', add)).toBe('\uFEFF{"a":1,"return_token_ids":true}');
  });

  it("does what parse, edit and stringify do, for any object", () => {
    fc.assert(
      fc.property(
        fc.dictionary(fc.oneof(fc.constantFrom("a", "b", "c"), fc.string()), fc.jsonValue()),
        fc.dictionary(
          fc.constantFrom("a", "b", "c", "d"),
          fc.oneof(
            fc.record({ set: fc.constantFrom(1, "x", null) }),
            fc.constant({ remove: true as const }),
          ),
        ),
        fc.constantFrom(undefined, 1, "\t"),
        (object, edits, space) => {
          const text = JSON.stringify(object, null, space);
          const expected = new Map(Object.entries(JSON.parse(text) as object));
          for (const [key, edit] of Object.entries(edits)) {
            if ("remove" in edit) expected.delete(key);
            else expected.set(key, edit.set);
          }
          const spliced = JSON.parse(splice(text, edits) ?? "") as object;
          expect(new Map(Object.entries(spliced))).toEqual(expected);
        },
      ),
      { numRuns: 1000 },
    );
  });

  it("survives arbitrary bytes", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
        spliceRequest(Buffer.from(bytes), add);
      }),
    );
  });

  it("takes a depth of a million without recursion", () => {
    const text = `{"a":${"[".repeat(1_000_000)}${"]".repeat(1_000_000)}}`;
    expect(splice(text, add)?.length).toBe(text.length + ',"return_token_ids":true'.length);
  });
});
