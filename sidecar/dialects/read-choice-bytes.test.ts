import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createSseDecoder } from "../sse/sse-decoder.ts";
import { type CaptureResult, createCallCapture } from "./call-capture.ts";
import type { ChunkScan } from "./chunk-scan.ts";
import { stripBlock } from "./passthrough-stream.ts";
import { readIds } from "./read-choice-bytes.ts";
import { stripResponse } from "./strip-response.ts";

const asked = { logprobs: false, tokenIds: false, usage: false };

/** Once after the relay has scanned the chunks, once with every chunk parsed as a whole. */
function captureBoth(
  chunks: readonly string[],
  keepsText = true,
): { readonly scanned: CaptureResult; readonly parsed: CaptureResult; readonly whole: number } {
  const bytes = Buffer.from(chunks.map((chunk) => `data: ${chunk}\n\n`).join(""));
  const scanned = createCallCapture({ keepsText });
  const parsed = createCallCapture();
  let whole = 0;
  for (const block of createSseDecoder().push(bytes)) {
    stripBlock(block, asked);
    scanned.addBlock(block);
    if (block.isParsed) whole += 1;
  }
  for (const block of createSseDecoder().push(bytes)) parsed.addBlock(block);
  return { scanned: scanned.result(), parsed: parsed.result(), whole };
}

const head = { id: "c", object: "chat.completion.chunk", model: "m" };
const chunk = (choice: object, rest: object = {}): string =>
  JSON.stringify({ ...head, ...rest, choices: [{ index: 0, ...choice }] });
const token = (id: number, logprob: number) => ({
  delta: { content: `t${id} "token_ids":[9]` },
  logprobs: { content: [{ token: "t", logprob, bytes: [1], top_logprobs: [{ logprob: -9 }] }] },
  token_ids: [id],
});
const first = chunk({ delta: { role: "assistant" } }, { prompt_token_ids: [1, 2] });
const usage = JSON.stringify({
  ...head,
  choices: [],
  usage: { prompt_tokens: 2, completion_tokens: 3 },
});

describe("ids and logprobs read from a chunk's bytes", () => {
  it("are those of the parsed chunk; none is parsed as a whole, the first and the usage chunk included", () => {
    const middle = [chunk(token(5, -0.25)), chunk(token(6, -1e-7)), chunk(token(7, 0))];
    const last = chunk({ delta: {}, finish_reason: "stop", stop_reason: 7, token_ids: [] });
    const { scanned, parsed, whole } = captureBoth([first, ...middle, last, usage, "[DONE]"]);
    expect(scanned).toEqual(parsed);
    expect(scanned.choices[0]).toMatchObject({ complete: true, finishReason: "stop" });
    expect(whole).toBe(0);
  });

  it("leave the text alone where it is not kept", () => {
    const { scanned, parsed } = captureBoth([first, chunk(token(5, -1))], false);
    expect(scanned.choices[0]?.responseIds).toEqual(parsed.choices[0]?.responseIds);
    expect(scanned.choices[0]?.logprobs).toEqual(parsed.choices[0]?.logprobs);
    expect([scanned.choices[0]?.text, parsed.choices[0]?.text]).toEqual(["", 't5 "token_ids":[9]']);
  });

  const odd: [string, string][] = [
    ["NaN for a logprob", chunk(token(5, -1)).replace("-1", "NaN")],
    ["null for a logprob", chunk(token(5, -1)).replace('"logprob":-1,', '"logprob":null,')],
    ["no logprob in an entry", chunk({ ...token(5, -1), logprobs: { content: [{}] } })],
    [
      "a logprob that is a text",
      chunk({ ...token(5, -1), logprobs: { content: [{ logprob: "" }] } }),
    ],
    ["a logprob twice", chunk(token(5, -1)).replace('"logprob":-1', '"logprob":-3,"logprob":-1')],
    ["text completions' logprobs", chunk({ logprobs: { token_logprobs: [-1] }, token_ids: [5] })],
    ["an id that is none", chunk({ ...token(5, -1), token_ids: [5.5] })],
    ["a negative id", chunk({ ...token(5, -1), token_ids: [-5] })],
    ["ids that are no list", chunk({ ...token(5, -1), token_ids: "5" })],
    [
      "a choice twice the same member",
      chunk(token(5, -1)).replace('"delta"', '"token_ids":[8],"delta"'),
    ],
    ["two lists of choices", chunk(token(5, -1)).replace('"choices"', '"choices":[],"choices"')],
    ["SGLang's pairs", chunk({ meta_info: { output_token_logprobs: [[-1, 5]] } })],
    ["versions", chunk({ ...token(5, -1), policy_versions: [{ version: 3, start: 0, end: 1 }] })],
    ["an error beside it", chunk(token(5, -1), { error: { message: "broken" } })],
    ["the older error", chunk(token(5, -1), { object: "error", message: "broken" })],
    ["usage beside it", chunk(token(5, -1), { usage: { prompt_tokens: 2, completion_tokens: 1 } })],
    ["something after it", `${chunk(token(5, -1))} x`],
    ["broken text", chunk(token(5, -1)).replace('"content":"', '"content":"\\x')],
    ["no index", chunk(token(5, -1)).replace('"index":0,', "")],
    ["another choice", chunk(token(5, -1)).replace('"index":0', '"index":1')],
    ["an index that is none", chunk(token(5, -1)).replace('"index":0', '"index":1.5')],
    ["spaces", JSON.stringify(JSON.parse(chunk(token(5, -1))), null, " ").replaceAll("\n", " ")],
  ];
  it.each(odd)("say the same of %s", (_name, text) => {
    const { scanned, parsed } = captureBoth([first, text, chunk(token(6, -2)), usage]);
    expect(scanned).toEqual(parsed);
  });

  it.each([
    ...odd,
    ["usage", usage],
    ["two choices", chunk({}).replace("[{", '[{"index":1},{')],
  ] as [string, string][])("say the same of a whole answer with %s", (_name, text) => {
    const body = Buffer.from(text.replaceAll('"delta"', '"message"'));
    let scan: ChunkScan | undefined;
    stripResponse(body, asked, false, (found) => {
      scan = found;
    });
    const [scanned, parsed] = [createCallCapture(), createCallCapture()];
    scanned.addBody(body, scan);
    parsed.addBody(body);
    expect(scanned.result()).toEqual(parsed.result());
  });

  it("say the same of any chunk", () => {
    const choice = fc.record(
      {
        index: fc.oneof(fc.nat(2), fc.constant(null)),
        delta: fc.oneof(fc.record({ content: fc.string() }), fc.constant(null), fc.string()),
        token_ids: fc.oneof(fc.array(fc.integer({ min: -1, max: 2 ** 32 })), fc.constant(null)),
        logprobs: fc.oneof(
          fc.record({ content: fc.array(fc.record({ logprob: fc.oneof(fc.double(), fc.nat()) })) }),
          fc.constant(null),
          fc.jsonValue(),
        ),
        finish_reason: fc.oneof(fc.constant("stop"), fc.constant(null)),
      },
      { requiredKeys: [] },
    );
    const chunks = fc.array(
      fc.record({ id: fc.string(), choices: fc.array(choice, { maxLength: 3 }) }),
      {
        maxLength: 4,
      },
    );
    fc.assert(
      fc.property(chunks, (values) => {
        const { scanned, parsed } = captureBoth([first, ...values.map((v) => JSON.stringify(v))]);
        expect(scanned).toEqual(parsed);
      }),
      { numRuns: 100 },
    );
  });

  it.each<[string, number[] | undefined]>([
    ["[]", []],
    ["[ ]", []],
    ["[1,22, 333]", [1, 22, 333]],
    ["[01]", undefined],
    ["[1,]", undefined],
    ["[1 2]", undefined],
    ["[1e3]", undefined],
    ["[1234567890123456]", undefined],
    ["[1", undefined],
  ])("reads %s", (text, ids) => {
    expect(readIds(Buffer.from(text), 0, text.length)).toEqual(ids);
  });
});
