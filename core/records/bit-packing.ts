import { bitSource, takeBits } from "./bit-stream.ts";

/**
 * Value i of the bits `[i * width, (i + 1) * width)`, lowest bit first; `width` is 0 to 32. Throws a
 * RangeError when there are not exactly as many bytes as that takes.
 */
export function unpackBits(bytes: Uint8Array, count: number, width: number): Int32Array {
  if (width > 32 || bytes.length !== Math.ceil((count * width) / 8))
    throw new RangeError(`${bytes.length} bytes do not hold ${count} values of ${width} bits`);
  const values = new Int32Array(count);
  const source = bitSource(bytes);
  for (let i = 0; i < count; i += 1) values[i] = takeBits(source, width);
  return values;
}
