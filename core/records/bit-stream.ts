/** Bits written one after another, the lowest of each value first; `putBits` fills it. */
export interface BitSink {
  readonly bytes: Uint8Array;
  /** Of the next byte to be written. */
  at: number;
  held: number;
  heldBits: number;
}

/** Bits read in the order in which they were put. */
export interface BitSource {
  readonly bytes: Uint8Array;
  at: number;
  held: number;
  heldBits: number;
}

/** For exactly so many bits: more would be lost. */
export function bitSink(bitCount: number): BitSink {
  return { bytes: new Uint8Array(Math.ceil(bitCount / 8)), at: 0, held: 0, heldBits: 0 };
}

export function bitSource(bytes: Uint8Array): BitSource {
  return { bytes, at: 0, held: 0, heldBits: 0 };
}

/** Puts the lowest `width` bits of `value`, 0 to 32; the others must be 0. */
export function putBits(sink: BitSink, value: number, width: number): void {
  const { heldBits } = sink;
  const held = sink.held | (value << heldBits);
  const total = heldBits + width;
  if (total < 32) {
    sink.held = held;
    sink.heldBits = total;
    return;
  }
  const { bytes, at } = sink;
  bytes[at] = held;
  bytes[at + 1] = held >>> 8;
  bytes[at + 2] = held >>> 16;
  bytes[at + 3] = held >>> 24;
  sink.at = at + 4;
  sink.heldBits = total - 32;
  // A shift by 32 would be one by 0. `held` stays an int32, so that it is never boxed.
  sink.held = heldBits === 0 ? 0 : (value >>> (32 - heldBits)) | 0;
}

/** The bytes, once all bits are put; the last byte is filled with zero bits. */
export function finishBits(sink: BitSink): Uint8Array {
  for (; sink.heldBits > 0; sink.heldBits -= 8, sink.held >>>= 8) sink.bytes[sink.at++] = sink.held;
  return sink.bytes;
}

/** The next `width` bits, 0 to 32, as a signed integer. Throws a RangeError behind the last byte. */
export function takeBits(source: BitSource, width: number): number {
  if (width > 16) {
    const low = takeBits(source, 16);
    return low | (takeBits(source, width - 16) << 16);
  }
  let { held, heldBits } = source;
  for (; heldBits < width; heldBits += 8) {
    if (source.at >= source.bytes.length)
      throw new RangeError(`${source.bytes.length} bytes end in the middle of a value`);
    held |= (source.bytes[source.at++] as number) << heldBits;
  }
  source.held = held >>> width;
  source.heldBits = heldBits - width;
  return held & ((1 << width) - 1);
}

/** Throws a RangeError unless everything was read, but for the zero bits that fill the last byte. */
export function endOfBits(source: BitSource): void {
  if (source.at !== source.bytes.length || source.held !== 0)
    throw new RangeError(`${source.bytes.length} bytes go on after the last value`);
}
