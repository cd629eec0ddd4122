import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { ClientAsked } from "./dialect.ts";
import { droppedChunk, stripResponse } from "./strip-response.ts";

const nothing: ClientAsked = { logprobs: false, tokenIds: false, usage: false };

function strip(text: string, asked: ClientAsked = nothing, isChunk = true): string | undefined {
  const stripped = stripResponse(Buffer.from(text), asked, isChunk);
  return stripped === droppedChunk ? undefined : stripped.toString();
}

describe("stripResponse (wire format: hiding the capture)", () => {
  it.each<[string, string, string]>([
    [
      "vLLM's first chunk",
      '{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"token_ids":null}],"prompt_token_ids":[1,2]}',
      '{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}',
    ],
    [
      "a delta with ids and logprobs",
      '{"choices":[{"token_ids":[5,6],"index":0,"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"delta":{"content":"a"}}], "usage":null}',
      '{"choices":[{"index":0,"logprobs":null,"delta":{"content":"a"}}]}',
    ],
    [
      "text completion ids inside choices",
      '{"choices":[{"index":0,"text":"a","prompt_token_ids":[1],"token_ids":[2],"logprobs":{"token_logprobs":[-1]}}]}',
      '{"choices":[{"index":0,"text":"a","logprobs":null}]}',
    ],
    [
      "SGLang's meta_info",
      '{"choices":[{"index":0,"meta_info":{"output_token_logprobs":[[-1,2,"a"]]},"delta":{}}]}',
      '{"choices":[{"index":0,"delta":{}}]}',
    ],
    [
      "the native engine's policy versions",
      '{"choices":[{"index":0,"delta":{},"policy_versions":[{"version":1,"start":0,"end":2}]}]}',
      '{"choices":[{"index":0,"delta":{}}]}',
    ],
    [
      "only at their places: tool arguments and nested objects keep namesakes",
      '{"choices":[{"index":0,"delta":{"token_ids":[1],"content":"\\"token_ids\\":[1]"}}],"x":{"prompt_token_ids":1}}',
      '{"choices":[{"index":0,"delta":{"token_ids":[1],"content":"\\"token_ids\\":[1]"}}],"x":{"prompt_token_ids":1}}',
    ],
    [
      "whitespace and number spelling",
      '{ "created" : 1.50e3 ,\n "choices":[ ] }',
      '{ "created" : 1.50e3 ,\n "choices":[ ] }',
    ],
    [
      "NaN, which is no JSON",
      '{"choices":[{"token_ids":[1],"logprobs":{"content":[{"logprob":NaN}]},"index":0}]}',
      '{"choices":[{"logprobs":null,"index":0}]}',
    ],
    [
      "usage in a chunk with choices stays",
      '{"choices":[{"index":0}],"usage":{"prompt_tokens":1}}',
      '{"choices":[{"index":0}],"usage":{"prompt_tokens":1}}',
    ],
    [
      "usage beside choices that are no list",
      '{"choices":"x","usage":{"prompt_tokens":1}}',
      '{"choices":"x","usage":{"prompt_tokens":1}}',
    ],
    [
      "usage beside an error",
      '{"choices":[],"error":{"message":"m"},"usage":{"prompt_tokens":1}}',
      '{"choices":[],"error":{"message":"m"},"usage":{"prompt_tokens":1}}',
    ],
    ["an error object", '{"error":{"message":"m"}}', '{"error":{"message":"m"}}'],
    ["what is no object", "[1,", "[1,"],
  ])("%s", (_name, text, expected) => {
    expect(strip(text)).toBe(expected);
  });

  it("drops the usage-only chunk of a harness that did not ask for usage", () => {
    const chunk = '{"id":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}';
    expect(strip(chunk)).toBeUndefined();
    expect(strip(chunk, { ...nothing, usage: true })).toBe(chunk);
  });

  it("keeps usage of an answer that is no stream", () => {
    const answer = '{"choices":[],"usage":{"prompt_tokens":1}}';
    expect(strip(answer, nothing, false)).toBe(answer);
  });

  it("keeps what the harness asked for", () => {
    const text =
      '{"prompt_token_ids":[1],"choices":[{"token_ids":[2],"logprobs":{"content":[]}}],"usage":null}';
    expect(strip(text, { logprobs: true, tokenIds: true, usage: true })).toBe(text);
    expect(strip(text, { ...nothing, logprobs: true })).toBe(
      '{"choices":[{"logprobs":{"content":[]}}]}',
    );
  });

  it("undoes exactly what an engine adds, wherever it adds it", () => {
    const added = fc.constantFrom("prompt_token_ids", "token_ids", "policy_versions", "meta_info");
    const plain = fc
      .array(fc.tuple(fc.string(), fc.jsonValue()), { maxLength: 4 })
      .map((members) =>
        members.filter(([key]) => !/token_ids|versions|meta_info|logprobs|choices|usage/.test(key)),
      );
    const mixed = fc.tuple(plain, fc.array(fc.tuple(fc.nat(4), added), { maxLength: 3 }));
    const text = (
      [members, extras]: [[string, unknown][], [number, string][]],
      withExtras: boolean,
      more: string[],
    ) => {
      const parts = members.map(
        ([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`,
      );
      parts.push(...more);
      if (withExtras)
        for (const [place, key] of extras) parts.splice(place, 0, `"${key}":[1,{"a":[2]}]`);
      return `{${parts.join(",")}}`;
    };
    fc.assert(
      fc.property(mixed, fc.array(mixed, { maxLength: 3 }), (root, choices) => {
        const build = (withExtras: boolean) =>
          text(root, withExtras, [
            `"choices":[${choices.map((choice) => text(choice, withExtras, [])).join(",")}]`,
          ]);
        expect(strip(build(true))).toBe(build(false));
      }),
      { numRuns: 500 },
    );
  });

  it("survives arbitrary text", () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.constantFrom("{", "}", "[", "]", '"choices"', ":", ",", '"', "\\", "1", '"token_ids"'),
          { maxLength: 30 },
        ),
        (parts) => {
          strip(parts.join(""));
        },
      ),
    );
  });
});
