import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import { maxUnitsPerToken } from "./max-units-per-token.ts";
import { missingModelFile, parseJsonFile, readOptionalFile } from "./model-files.ts";

/** What the policy server needs of a tokenizer: exact ids in, exact bytes out. */
export interface PolicyTokenizer {
  /** Number of ids that the tokenizer knows; 1 + the highest. */
  readonly idCount: number;
  /** Blocks for seconds per megabyte of text: see `maxUnitsPerToken`. */
  encode(text: string, addSpecialTokens: boolean): Int32Array;
  /**
   * No token stands for more UTF-16 units of text than this, so that a text too long for a context
   * is known without encoding it. Infinity where the tokenizer has no such bound.
   */
  readonly maxUnitsPerToken: number;
  /**
   * The bytes that an id stands for, which may be part of a UTF-8 character. Empty for ids that no
   * token has (a padded vocabulary).
   */
  bytesOf(id: number): Uint8Array;
  /** Special tokens (turn marks, end of text) are not part of a response's text. */
  isSpecial(id: number): boolean;
  /** Added tokens are whole texts: they end a half-finished UTF-8 character before them. */
  isAdded(id: number): boolean;
  idOf(token: string): number | undefined;
  /** All of it, special tokens too: for showing what the model saw. */
  decode(ids: readonly number[]): string;
}

/** The tokenizer of a model directory, without its weights. */
export async function loadPolicyTokenizer(directory: string): Promise<PolicyTokenizer> {
  const read = async (name: string): Promise<unknown> => {
    const path = join(directory, name);
    const contents = await readOptionalFile(path);
    return contents === undefined ? undefined : parseJsonFile(contents, path);
  };
  const json = await read("tokenizer.json");
  const path = join(directory, "tokenizer.json");
  if (json === undefined) throw missingModelFile(`${path} does not exist`);
  return openPolicyTokenizer(json, (await read("tokenizer_config.json")) ?? {}, path);
}

type Alphabet = "byte-level" | "byte-fallback";

interface DecoderJson {
  readonly type?: string;
  readonly decoders?: readonly DecoderJson[];
}

/** Opens the contents of `tokenizer.json` and `tokenizer_config.json`; `path` names it in errors. */
export function openPolicyTokenizer(
  tokenizerJson: unknown,
  tokenizerConfig: unknown,
  path: string,
): PolicyTokenizer {
  let tokenizer: Tokenizer;
  try {
    tokenizer = new Tokenizer(tokenizerJson as object, tokenizerConfig as object);
  } catch (cause) {
    throw new OutriggerError("tokenizer-invalid", `${path}: ${(cause as Error).message}`, {
      origin: "user",
      hint: "The file must be a Hugging Face tokenizers `tokenizer.json`.",
      cause,
    });
  }
  const alphabet = alphabetOf((tokenizerJson as { decoder?: DecoderJson | null }).decoder, path);
  const added = tokenizer.get_added_tokens_decoder();
  const vocab = tokenizer.get_vocab(true);
  let idCount = 0;
  for (const id of vocab.values()) idCount = Math.max(idCount, id + 1);
  const bytes = new Map<number, Uint8Array>();
  const isAdded = (id: number): boolean => added.has(id);
  const bytesOf = (id: number): Uint8Array => {
    let known = bytes.get(id);
    if (known === undefined) {
      known = tokenBytes(tokenizer.id_to_token(id), isAdded(id) ? "text" : alphabet);
      bytes.set(id, known);
    }
    return known;
  };
  return {
    idCount,
    maxUnitsPerToken: maxUnitsPerToken(tokenizerJson, vocab.keys()),
    encode: (text, addSpecialTokens) =>
      text === ""
        ? new Int32Array(0)
        : Int32Array.from(tokenizer.encode(text, { add_special_tokens: addSpecialTokens }).ids),
    bytesOf,
    isSpecial: (id) => added.get(id)?.special === true,
    isAdded,
    idOf: (token) => vocab.get(token),
    decode: (ids) => Buffer.concat(ids.map(bytesOf)).toString(),
  };
}

function alphabetOf(decoder: DecoderJson | null | undefined, path: string): Alphabet {
  const types = flatten(decoder).map((d) => d.type);
  if (types.includes("ByteLevel")) return "byte-level";
  if (types.includes("ByteFallback") || types.includes("Metaspace") || types.includes("Fuse")) {
    return "byte-fallback";
  }
  throw new OutriggerError(
    "tokenizer-unsupported",
    `${path}: decoder ${JSON.stringify(decoder ?? null)} is not supported`,
    {
      origin: "user",
      hint: "Byte-level (Qwen, Llama 3) and byte-fallback (Llama 2) tokenizers are.",
    },
  );
}

function flatten(decoder: DecoderJson | null | undefined): DecoderJson[] {
  if (decoder === null || decoder === undefined) return [];
  return [decoder, ...(decoder.decoders ?? []).flatMap(flatten)];
}

const encoder = new TextEncoder();

function tokenBytes(token: string | undefined, alphabet: Alphabet | "text"): Uint8Array {
  if (token === undefined) return new Uint8Array(0);
  if (alphabet === "text") return encoder.encode(token);
  if (alphabet === "byte-level") {
    return Uint8Array.from(
      Array.from(token).flatMap((c) => byteOfCharacter.get(c) ?? [...encoder.encode(c)]),
    );
  }
  const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1];
  if (byte !== undefined) return Uint8Array.of(Number.parseInt(byte, 16));
  return encoder.encode(token.replaceAll("\u2581", " "));
}

/** Byte-level tokenizers write each byte as a printable character (GPT-2's table). */
const byteOfCharacter: ReadonlyMap<string, number> = (() => {
  const printable = (b: number): boolean =>
    (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  const table = new Map<string, number>();
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    table.set(String.fromCodePoint(printable(byte) ? byte : next++), byte);
  }
  return table;
})();
