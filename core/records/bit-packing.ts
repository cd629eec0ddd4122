/** Bits that the largest value needs, read as unsigned: 0 for none or all zero, at most 32. */
export function bitWidth(values: Int32Array): number {
  let bits = 0;
  for (let i = 0; i < values.length; i += 1) bits |= values[i] as number;
  return 32 - Math.clz32(bits);
}

/** Value i takes the bits `[i * width, (i + 1) * width)`, lowest bit first. `width` 0 to 32. */
export function packBits(values: Int32Array, width: number): Uint8Array {
  const bytes = new Uint8Array(Math.ceil((values.length * width) / 8));
  let held = 0;
  let heldBits = 0;
  let at = 0;
  for (let i = 0; i < values.length; i += 1) {
    let value = values[i] as number;
    let left = width;
    while (left > 0) {
      // At most 7 bits are held, so 16 more always fit.
      const take = Math.min(left, 16);
      held |= (value & ((1 << take) - 1)) << heldBits;
      heldBits += take;
      value >>>= take;
      left -= take;
      for (; heldBits >= 8; heldBits -= 8, held >>>= 8) bytes[at++] = held;
    }
  }
  if (heldBits > 0) bytes[at] = held;
  return bytes;
}

/** The inverse. Throws a RangeError when there are not exactly as many bytes as that takes. */
export function unpackBits(bytes: Uint8Array, count: number, width: number): Int32Array {
  if (width > 32 || bytes.length !== Math.ceil((count * width) / 8))
    throw new RangeError(`${bytes.length} bytes do not hold ${count} values of ${width} bits`);
  const values = new Int32Array(count);
  let held = 0;
  let heldBits = 0;
  let at = 0;
  for (let i = 0; i < count; i += 1) {
    let value = 0;
    for (let done = 0; done < width; ) {
      const take = Math.min(width - done, 16);
      for (; heldBits < take; heldBits += 8) held |= (bytes[at++] as number) << heldBits;
      value |= (held & ((1 << take) - 1)) << done;
      held >>>= take;
      heldBits -= take;
      done += take;
    }
    values[i] = value;
  }
  return values;
}
