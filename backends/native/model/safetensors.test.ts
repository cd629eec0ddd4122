import { mkdtemp, readdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bfloat16ToFloat32, float16ToFloat32, float32ToBfloat16 } from "./float-formats.ts";
import type { Tensor } from "./named-weights.ts";
import { readSafetensors, writeSafetensors } from "./safetensors.ts";

const temporary = (): Promise<string> => mkdtemp(join(tmpdir(), "safetensors-"));

function fileOf(header: unknown, data: Uint8Array): Uint8Array {
  const json = new TextEncoder().encode(JSON.stringify(header));
  const bytes = new Uint8Array(8 + json.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(json.length), true);
  bytes.set(json, 8);
  bytes.set(data, 8 + json.length);
  return bytes;
}

describe("safetensors", () => {
  it("gives back what was written, bit for bit, odd shapes included", async () => {
    const directory = await temporary();
    const path = join(directory, "w.safetensors");
    await fc.assert(
      fc.asyncProperty(
        fc.dictionary(
          fc.string({ minLength: 1, maxLength: 12 }).filter((n) => !n.startsWith("__")),
          fc.float32Array({ maxLength: 9 }),
          { maxKeys: 4 },
        ),
        async (named) => {
          const tensors = new Map<string, Tensor>(
            Object.entries(named).map(([name, data]) => [name, { shape: [1, data.length], data }]),
          );
          await writeSafetensors(path, tensors, { metadata: { step: "3" } });
          const read = await readSafetensors(path);
          expect(read.metadata).toEqual({ format: "pt", step: "3" });
          expect([...read.tensors.keys()].sort()).toEqual([...tensors.keys()].sort());
          for (const [name, { data, shape }] of tensors) {
            expect(read.tensors.get(name)?.shape).toEqual(shape);
            expect(new Uint32Array(read.tensors.get(name)!.data.slice().buffer)).toEqual(
              new Uint32Array(data.slice().buffer),
            );
          }
        },
      ),
      { numRuns: 40 },
    );
    expect(await readdir(directory)).toEqual(["w.safetensors"]);
  });

  it("reads half-precision values", async () => {
    // From IEEE 754: 0x3c00 = 1, 0xc000 = -2, 0x0001 = 2^-24, 0x7bff = 65504.
    expect([0x3c00, 0xc000, 0x0001, 0x7bff].map(float16ToFloat32)).toEqual([
      1,
      -2,
      2 ** -24,
      65504,
    ]);
    expect([0x3f80, 0xc000, 0x4049].map(bfloat16ToFloat32)).toEqual([1, -2, 3.140625]);
    const path = join(await temporary(), "half.safetensors");
    const data = new Uint8Array(new Uint16Array([0x3c00, 0xc000, 0x3f80, 0x4049]).buffer);
    await writeFile(
      path,
      fileOf(
        {
          a: { dtype: "F16", shape: [2], data_offsets: [0, 4] },
          b: { dtype: "BF16", shape: [2], data_offsets: [4, 8] },
        },
        data,
      ),
    );
    const { tensors } = await readSafetensors(path);
    expect([...tensors.get("a")!.data]).toEqual([1, -2]);
    expect([...tensors.get("b")!.data]).toEqual([1, 3.140625]);
  });

  it("rounds to bfloat16 to nearest, ties to even", () => {
    fc.assert(
      fc.property(fc.float({ noNaN: true }), (x) => {
        const rounded = bfloat16ToFloat32(float32ToBfloat16(x));
        const bits = float32ToBfloat16(x);
        const neighbours = [bits - 1, bits, bits + 1].map((b) => bfloat16ToFloat32(b & 0xffff));
        const distance = Math.abs(rounded - x);
        return (
          !Number.isFinite(rounded) ||
          neighbours.every((n) => !Number.isFinite(n) || Math.abs(n - x) >= distance)
        );
      }),
    );
    expect(float32ToBfloat16(1 + 2 ** -8)).toBe(0x3f80);
    expect(float32ToBfloat16(1 + 3 * 2 ** -8)).toBe(0x3f82);
    expect(bfloat16ToFloat32(float32ToBfloat16(Number.NaN))).toBeNaN();
  });

  it.each([
    [
      "cut short",
      fileOf({ a: { dtype: "F32", shape: [2], data_offsets: [0, 8] } }, new Uint8Array(4)),
      /tensor a F32 \[2\] needs 8 bytes/,
    ],
    [
      "wrong size",
      fileOf({ a: { dtype: "F32", shape: [3], data_offsets: [0, 8] } }, new Uint8Array(8)),
      /tensor a/,
    ],
    ["huge header", new Uint8Array([255, 255, 255, 255, 255, 0, 0, 0, 1]), /header claims/],
    ["tiny file", new Uint8Array(3), /too few/],
    ["no JSON", new Uint8Array([2, 0, 0, 0, 0, 0, 0, 0, 120, 120]), /not JSON/],
    [
      "integer tensor",
      fileOf({ a: { dtype: "I64", shape: [1], data_offsets: [0, 8] } }, new Uint8Array(8)),
      /dtype I64/,
    ],
  ])("refuses a file that is %s, naming it", async (_what, bytes, message) => {
    const path = join(await temporary(), "bad.safetensors");
    await writeFile(path, bytes);
    await expect(readSafetensors(path)).rejects.toThrow(message);
    await expect(readSafetensors(path)).rejects.toThrow(path);
  });

  it("leaves the old file when writing fails", async () => {
    const directory = await temporary();
    const path = join(directory, "w.safetensors");
    await writeSafetensors(path, new Map([["a", { shape: [1], data: Float32Array.of(7) }]]));
    const before = await readFile(path);
    const broken = new Map([["a", { shape: [1], data: undefined as unknown as Float32Array }]]);
    await expect(writeSafetensors(path, broken)).rejects.toThrow();
    expect(await readFile(path)).toEqual(before);
    expect(await readdir(directory)).toEqual(["w.safetensors"]);
  });
});
