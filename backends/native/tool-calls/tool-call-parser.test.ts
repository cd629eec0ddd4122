import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { parseToolCall } from "./parse-tool-call.ts";
import { createToolCallParser, type ParsedPiece } from "./tool-call-parser.ts";

function parse(chunks: readonly string[]): ParsedPiece[] {
  const parser = createToolCallParser();
  const pieces = [...chunks.flatMap((c) => parser.push(c)), ...parser.end()];
  const joined: ParsedPiece[] = [];
  for (const piece of pieces) {
    const last = joined.at(-1);
    if (piece.kind === "text" && last?.kind === "text") {
      joined[joined.length - 1] = { kind: "text", text: last.text + piece.text };
    } else joined.push(piece);
  }
  return joined;
}

const text = (t: string): ParsedPiece => ({ kind: "text", text: t });
const call = (name: string, args: string): ParsedPiece => ({
  kind: "call",
  call: { name, arguments: args },
});
const block = '<tool_call>\n{"name": "calc", "arguments": {"a": 1.0}}\n</tool_call>';

describe("tool call parser", () => {
  it.each<[string, string, ParsedPiece[]]>([
    ["plain text", "a < b\n", [text("a < b\n")]],
    ["one call, arguments as the model wrote them", block, [call("calc", '{"a": 1.0}')]],
    [
      "text, then a call on its own line",
      `Let me see.\n${block}`,
      [text("Let me see."), call("calc", '{"a": 1.0}')],
    ],
    ["two calls", `${block}\n${block}\n`, [call("calc", '{"a": 1.0}'), call("calc", '{"a": 1.0}')]],
    [
      "text after a call keeps its space",
      `${block} done`,
      [call("calc", '{"a": 1.0}'), text(" done")],
    ],
    ["cut off after whole JSON", '<tool_call>{"name":"f","arguments":{}}', [call("f", "{}")]],
    [
      "cut off within JSON",
      '\n<tool_call>{"name":"f","argu',
      [text('\n<tool_call>{"name":"f","argu')],
    ],
    ["no JSON", "x\n<tool_call>hm</tool_call>\ny", [text("x\n<tool_call>hm</tool_call>\ny")]],
    [
      "a call after a broken one",
      `<tool_call>[]</tool_call>\n${block}`,
      [text("<tool_call>[]</tool_call>"), call("calc", '{"a": 1.0}')],
    ],
    [
      "a broken one after a call",
      `${block}\n<tool_call>[]</tool_call>`,
      [call("calc", '{"a": 1.0}'), text("\n<tool_call>[]</tool_call>")],
    ],
    ["half a tag at the end", "x\n<tool_ca", [text("x\n<tool_ca")]],
    ["a stray end tag", "</tool_call>", [text("</tool_call>")]],
  ])("reads %s", (_what, input, pieces) => {
    expect(parse([input])).toEqual(pieces);
    expect(parse(Array.from(input))).toEqual(pieces);
  });

  it("is total, and gives the same for every chunking", () => {
    const part = fc.oneof(
      fc.constantFrom(
        "<tool_call>",
        "</tool_call>",
        "\n",
        " ",
        "<",
        "<tool",
        '{"name":"f"}',
        block,
        '"',
        "{",
        "}",
      ),
      fc.string({ maxLength: 4 }),
    );
    fc.assert(
      fc.property(
        fc.array(part, { maxLength: 8 }),
        fc.array(fc.nat(), { maxLength: 6 }),
        (parts, cuts) => {
          const input = parts.join("");
          const at = [
            0,
            ...cuts.map((c) => c % (input.length + 1)).sort((a, b) => a - b),
            input.length,
          ];
          const chunks = at.slice(1).map((end, i) => input.slice(at[i], end));
          expect(parse(chunks)).toEqual(parse([input]));
        },
      ),
      { numRuns: 500 },
    );
  });

  it("never shows a call's text as text and never loses other text", () => {
    const plain = fc.string({ maxLength: 12 }).filter((s) => !s.includes("<") && s.trim() === s);
    fc.assert(
      fc.property(plain, plain, fc.jsonValue(), (before, after, value) => {
        const body = JSON.stringify({ name: "f", arguments: { value } });
        fc.pre(!body.includes("</tool_call>"));
        const pieces = parse([`${before}\n<tool_call>\n${body}\n</tool_call>`, after]);
        const wanted = [call("f", JSON.stringify({ value }))];
        if (before !== "") wanted.unshift(text(before));
        if (after !== "") wanted.push(text(after));
        expect(pieces).toEqual(wanted);
      }),
    );
  });
});

describe("parseToolCall", () => {
  it.each<[string, ReturnType<typeof parseToolCall>]>([
    ['{"arguments": { "x" : "}\\"" } , "name":"f"}', { name: "f", arguments: '{ "x" : "}\\"" }' }],
    ['{"name":"f","arguments":"{\\"x\\":1}"}', { name: "f", arguments: '{"x":1}' }],
    ['{"name":"f"}', { name: "f", arguments: "{}" }],
    [
      '{"name":"f","arguments":{"a":1},"arguments":{"b":[2]}}',
      { name: "f", arguments: '{"b":[2]}' },
    ],
    ['{"x":[1,{"arguments":3}],"name":"f","arguments":{}}', { name: "f", arguments: "{}" }],
    ['{"name":"","arguments":{}}', undefined],
    ['{"name":"f","arguments":[1]}', undefined],
    ['{"name":"f","arguments":3}', undefined],
    ["null", undefined],
    ["", undefined],
  ])("%s", (body, wanted) => {
    expect(parseToolCall(body)).toEqual(wanted);
  });
});
