import * as zlib from "node:zlib";
import { describe, expect, it } from "vitest";
import { acceptedEncodings, decodeRequestBody } from "./decode-request-body.ts";

const text = Buffer.from(`{"messages":"${"word ".repeat(200)}"}`);
const zstd = zlib as { zstdCompressSync?: (bytes: Buffer) => Buffer };

describe("decodeRequestBody", () => {
  it.each<[string, Buffer]>([
    ["identity", text],
    ["", text],
    ["gzip", zlib.gzipSync(text)],
    ["X-GZIP", zlib.gzipSync(text)],
    ["deflate", zlib.deflateSync(text)],
    ["deflate", zlib.deflateRawSync(text)],
    ["br", zlib.brotliCompressSync(text)],
    ["gzip, br", zlib.brotliCompressSync(zlib.gzipSync(text))],
  ])("undoes %j", async (encoding, body) => {
    expect(await decodeRequestBody(body, encoding, 10_000)).toEqual({
      kind: "decoded",
      body: text,
    });
  });

  it("zstd where this Node has it, and says so", async () => {
    const compress = zstd.zstdCompressSync;
    expect(acceptedEncodings.includes("zstd")).toBe(compress !== undefined);
    const decoded = await decodeRequestBody(compress?.(text) ?? text, "zstd", 10_000);
    expect(decoded.kind).toBe(compress === undefined ? "unsupported" : "decoded");
  });

  it("names an encoding that it does not know", async () => {
    const decoded = await decodeRequestBody(text, "gzip, rot13", 10_000);
    expect(decoded).toEqual({ kind: "unsupported", encoding: "rot13" });
  });

  it("says what is broken, and stops a bomb at the bound", async () => {
    const cut = zlib.gzipSync(text).subarray(0, 20);
    expect(await decodeRequestBody(cut, "gzip", 10_000)).toMatchObject({ kind: "broken" });
    expect(await decodeRequestBody(text, "br", 10_000)).toMatchObject({ kind: "broken" });
    const bomb = zlib.gzipSync(Buffer.alloc(10_000_000));
    expect(await decodeRequestBody(bomb, "gzip", 10_000)).toEqual({ kind: "too-large" });
    expect(await decodeRequestBody(text, "identity", 10)).toEqual({ kind: "too-large" });
  });
});
