import { expect, it } from "vitest";
import { maxUnitsPerToken } from "./max-units-per-token.ts";

const tokens = ["a", "abcd", "b"];
const bpe = { model: { type: "BPE" } };
const replace = { type: "Replace", pattern: { String: " " }, content: "\u2581" };

it.each<[string, object, number]>([
  ["the longest token", bpe, 4],
  ["a normalizer that composes", { ...bpe, normalizer: { type: "NFC" } }, 16],
  [
    "blanks written as marks",
    {
      model: { type: "BPE", unk_token: "<unk>", byte_fallback: true },
      normalizer: { type: "Sequence", normalizers: [{ type: "Prepend" }, replace] },
    },
    4,
  ],
  [
    "pairs that become one",
    { ...bpe, normalizer: { ...replace, pattern: { String: "``" }, content: "'" } },
    8,
  ],
  [
    "an expression that is replaced",
    { ...bpe, normalizer: { ...replace, pattern: { Regex: "x+" } } },
    Infinity,
  ],
  ["text that is left out", { ...bpe, normalizer: { ...replace, content: "" } }, Infinity],
  ["a normalizer that strips", { ...bpe, normalizer: { type: "Strip" } }, Infinity],
  ["unknown words as one token", { model: { type: "BPE", unk_token: "<unk>" } }, Infinity],
  ["another model", { model: { type: "Unigram" } }, Infinity],
  ["tokens that eat blanks", { ...bpe, added_tokens: [{ rstrip: true }] }, Infinity],
])("bounds the text of a token: %s", (_what, json, expected) => {
  expect(maxUnitsPerToken(json, tokens)).toBe(expected);
});
