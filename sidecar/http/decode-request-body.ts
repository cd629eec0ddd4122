import { promisify } from "node:util";
import * as zlib from "node:zlib";

export type DecodedBody =
  | { readonly kind: "decoded"; readonly body: Buffer }
  /** `encoding` is one that this process cannot undo. */
  | { readonly kind: "unsupported"; readonly encoding: string }
  | { readonly kind: "too-large" }
  | { readonly kind: "broken"; readonly encoding: string; readonly message: string };

type Decode = (body: Buffer, options: { readonly maxOutputLength: number }) => Promise<Buffer>;

const inflate = promisify<Buffer, zlib.ZlibOptions, Buffer>(zlib.inflate);
const inflateRaw = promisify<Buffer, zlib.ZlibOptions, Buffer>(zlib.inflateRaw);
const gunzip = promisify<Buffer, zlib.ZlibOptions, Buffer>(zlib.gunzip);

/** `deflate` is zlib's format (RFC 9110 section 8.4.1.2), but many clients send it without. */
const decodeDeflate: Decode = (body, options) =>
  ((body[0] ?? 0) & 0x0f) === 8 ? inflate(body, options) : inflateRaw(body, options);

const decoders = new Map<string, Decode>([
  ["gzip", gunzip],
  ["x-gzip", gunzip],
  ["deflate", decodeDeflate],
  ["br", promisify<Buffer, zlib.BrotliOptions, Buffer>(zlib.brotliDecompress)],
]);
// Node has zstd from 22.15 on.
const { zstdDecompress } = zlib as { zstdDecompress?: typeof zlib.brotliDecompress };
if (zstdDecompress !== undefined) {
  decoders.set("zstd", promisify<Buffer, zlib.BrotliOptions, Buffer>(zstdDecompress));
}

/** For `Accept-Encoding` of a refusal, and its message. */
export const acceptedEncodings = [...decoders.keys()].filter((name) => name !== "x-gzip");

/**
 * A request body without its content encodings: members can only be spliced into the text itself.
 * `encodings` is the header's value, in the order in which they were applied. What it decodes to is
 * at most `maxBytes` long, whatever the bytes promise.
 */
export async function decodeRequestBody(
  body: Buffer,
  encodings: string,
  maxBytes: number,
): Promise<DecodedBody> {
  let decoded = body;
  const names = encodings.split(",").map((name) => name.trim().toLowerCase());
  for (const name of names.reverse()) {
    if (name === "" || name === "identity") continue;
    const decode = decoders.get(name);
    if (decode === undefined) return { kind: "unsupported", encoding: name };
    try {
      decoded = await decode(decoded, { maxOutputLength: Math.max(1, maxBytes) });
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === "ERR_BUFFER_TOO_LARGE") return { kind: "too-large" };
      return { kind: "broken", encoding: name, message };
    }
  }
  return decoded.length > maxBytes ? { kind: "too-large" } : { kind: "decoded", body: decoded };
}
