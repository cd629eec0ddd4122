/**
 * 32-bit integers as bytes in planes: the lowest byte of every value, then the second lowest of
 * every value, and so on for `planeCount` planes.
 * Example: `[1, 0x203]` in 2 planes is `[1, 3, 0, 2]`.
 */
export function toBytePlanes(values: Int32Array, planeCount: number): Uint8Array {
  const { length } = values;
  const bytes = new Uint8Array(length * planeCount);
  for (let plane = 0; plane < planeCount; plane += 1) {
    const shift = plane * 8;
    const offset = plane * length;
    for (let i = 0; i < length; i += 1) bytes[offset + i] = (values[i] as number) >>> shift;
  }
  return bytes;
}

/** The inverse; planes that are not there are 0. Throws a RangeError when the length is not whole. */
export function fromBytePlanes(bytes: Uint8Array, count: number): Int32Array {
  const values = new Int32Array(count);
  if (count === 0) {
    if (bytes.length > 0) throw new RangeError(`${bytes.length} bytes for no values`);
    return values;
  }
  const planeCount = bytes.length / count;
  if (!Number.isInteger(planeCount) || planeCount > 4)
    throw new RangeError(`${bytes.length} bytes are not whole planes of ${count} values`);
  for (let plane = 0; plane < planeCount; plane += 1) {
    const shift = plane * 8;
    const offset = plane * count;
    for (let i = 0; i < count; i += 1)
      values[i] = (values[i] as number) | ((bytes[offset + i] as number) << shift);
  }
  return values;
}
