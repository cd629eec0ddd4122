import { expect, it } from "vitest";
import { createSseDecoder } from "../sse/sse-decoder.ts";
import { stripBlock } from "./passthrough-stream.ts";

const asked = { logprobs: false, tokenIds: false, usage: false };
const strip = (text: string): string => {
  const [block] = createSseDecoder().push(Buffer.from(text));
  if (block === undefined) throw new Error("no block");
  return stripBlock(block, asked).toString();
};

it.each([
  ["line feeds", "\n"],
  ["carriage returns and line feeds", "\r\n"],
])("other fields of an event of several data lines stay as they came, with %s", (_name, end) => {
  const lines = [
    ": é",
    "id: 7",
    'data: {"id":"c","choices":[{"index":0,',
    'data:"delta":{"content":"é"},"token_ids":[1]}]}',
    "event: x",
    "retry: 5",
    "",
    "",
  ];
  const expected = [
    ": é",
    "id: 7",
    'data: {"id":"c","choices":[{"index":0,',
    'data: "delta":{"content":"é"}}]}',
    "event: x",
    "retry: 5",
    "",
    "",
  ];
  expect(strip(lines.join(end))).toBe(expected.join(end));
});
