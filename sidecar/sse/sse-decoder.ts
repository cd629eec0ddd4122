import { OutriggerError } from "../../core/outrigger-error.ts";
import { SseBlock } from "./sse-block.ts";

const LF = 10;
const CR = 13;
const COLON = 58;
const SPACE = 32;
const NO_BYTES = Buffer.alloc(0);

export interface SseDecoder {
  /**
   * Blocks that these bytes complete. Throws `sse-block-too-large` (origin engine) when a block
   * grows beyond `maxBlockBytes`; the decoder is then of no further use.
   */
  push(bytes: Uint8Array): SseBlock[];
  /** The unterminated tail, if any, as a last block with `terminated: false`. */
  end(): SseBlock | null;
  /** Bytes held back because their block is not complete. */
  readonly bufferedBytes: number;
}

/**
 * Splits an event stream into blocks, in time linear in its bytes. Lines end with CR, LF or CRLF.
 * A block is handed over as soon as its blank line is there: when that line ends with a CR at the
 * end of a chunk, an LF that follows becomes a block of its own instead of a wait.
 */
export function createSseDecoder(options: { readonly maxBlockBytes?: number } = {}): SseDecoder {
  const maxBlockBytes = options.maxBlockBytes ?? 64 * 1024 * 1024;
  let held: Buffer[] = [];
  let heldBytes = 0;
  let lineIsEmpty = true;
  /** The byte before was the CR of a line end; `crClosedBlock`: of a block's blank line. */
  let afterCr = false;
  let crClosedBlock = false;
  let first = true;

  function take(tail: Buffer): Buffer {
    const raw = held.length === 0 ? tail : Buffer.concat([...held, tail], heldBytes + tail.length);
    held = [];
    heldBytes = 0;
    return raw;
  }

  function parse(raw: Buffer, terminated: boolean, hasCr: boolean): SseBlock {
    const block = parseBlock(raw, terminated, first, hasCr);
    first = false;
    return block;
  }

  function push(chunk: Uint8Array): SseBlock[] {
    const bytes = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    const blocks: SseBlock[] = [];
    let start = 0;
    let position = 0;
    let nextCr = bytes.indexOf(CR);
    let nextLf = bytes.indexOf(LF);
    // What was held back is looked at again with the rest of its block.
    let hasCr = nextCr !== -1 || held.length > 0;
    if (afterCr && bytes.length > 0) {
      afterCr = false;
      if (nextLf === 0) {
        position = 1;
        if (crClosedBlock) {
          blocks.push(SseBlock.ofJoined(bytes.subarray(0, 1), null, null, true));
          start = 1;
        }
      }
      crClosedBlock = false;
    }
    for (;;) {
      if (nextLf !== -1 && nextLf < position) nextLf = bytes.indexOf(LF, position);
      if (nextCr !== -1 && nextCr < position) nextCr = bytes.indexOf(CR, position);
      const lineEnd = nextLf === -1 ? nextCr : nextCr === -1 ? nextLf : Math.min(nextLf, nextCr);
      if (lineEnd === -1) break;
      if (lineEnd > position) lineIsEmpty = false;
      const isCr = bytes[lineEnd] === CR;
      position = lineEnd + 1;
      const closesBlock = lineIsEmpty;
      lineIsEmpty = true;
      if (isCr && position === bytes.length) {
        afterCr = true;
        crClosedBlock = closesBlock;
      } else if (isCr && bytes[position] === LF) position += 1;
      if (closesBlock) {
        blocks.push(parse(take(bytes.subarray(start, position)), true, hasCr));
        start = position;
        hasCr = nextCr !== -1;
      }
    }
    if (position < bytes.length) lineIsEmpty = false;
    if (start < bytes.length) {
      held.push(bytes.subarray(start));
      heldBytes += bytes.length - start;
      if (heldBytes > maxBlockBytes) throw blockTooLarge(maxBlockBytes);
    }
    return blocks;
  }

  return {
    push,
    end: () => (heldBytes === 0 ? null : parse(take(NO_BYTES), false, true)),
    get bufferedBytes() {
      return heldBytes;
    },
  };
}

function blockTooLarge(maxBlockBytes: number): OutriggerError {
  return new OutriggerError(
    "sse-block-too-large",
    `the engine's event stream has an event of more than ${maxBlockBytes} bytes`,
    {
      origin: "engine",
      hint: "Look for an engine or router that writes no blank line between events.",
    },
  );
}

/** `mayHaveCr` false: nobody saw one in these bytes. */
function parseBlock(
  raw: Buffer,
  terminated: boolean,
  first: boolean,
  mayHaveCr: boolean,
): SseBlock {
  const hasBom = first && raw[0] === 0xef && raw[1] === 0xbb && raw[2] === 0xbf;
  const hasCr = mayHaveCr && raw.indexOf(CR) !== -1;
  let position = hasBom ? 3 : 0;
  let event: string | null = null;
  let start = -1;
  let end = -1;
  let parts: Buffer[] | null = null;
  while (position < raw.length) {
    const lineEnd = lineEndFrom(raw, position, hasCr);
    if (isField(raw, position, lineEnd, "data")) {
      const value = valueStart(raw, position + 4, lineEnd);
      if (start !== -1) {
        parts ??= [raw.subarray(start, end)];
        parts.push(raw.subarray(value, lineEnd));
      }
      start = value;
      end = lineEnd;
    } else if (isField(raw, position, lineEnd, "event")) {
      event = raw.toString("utf8", valueStart(raw, position + 5, lineEnd), lineEnd);
    }
    position = lineEnd + (raw[lineEnd] === CR && raw[lineEnd + 1] === LF ? 2 : 1);
  }
  if (parts !== null) return SseBlock.ofJoined(raw, joinLines(parts), event, terminated);
  if (start === -1) return SseBlock.ofJoined(raw, null, event, terminated);
  return SseBlock.ofLine(raw, start, end, event, terminated);
}

function lineEndFrom(raw: Buffer, from: number, hasCr: boolean): number {
  const lf = raw.indexOf(LF, from);
  const end = lf === -1 ? raw.length : lf;
  if (!hasCr) return end;
  // Bounded by the LF, so that the search for CR never runs over the same bytes twice.
  const cr = raw.subarray(from, end).indexOf(CR);
  return cr === -1 ? end : from + cr;
}

/** `name` alone on its line is a field with an empty value. */
function isField(raw: Buffer, start: number, end: number, name: string): boolean {
  const after = start + name.length;
  if (after > end || (after < end && raw[after] !== COLON)) return false;
  for (let index = 0; index < name.length; index += 1) {
    if (raw[start + index] !== name.charCodeAt(index)) return false;
  }
  return true;
}

/** After the field's name: past its colon and one space. */
function valueStart(raw: Buffer, nameEnd: number, end: number): number {
  if (nameEnd >= end) return end;
  return nameEnd + 1 < end && raw[nameEnd + 1] === SPACE ? nameEnd + 2 : nameEnd + 1;
}

function joinLines(lines: readonly Buffer[]): Buffer {
  const newline = Buffer.from("\n");
  return Buffer.concat(lines.flatMap((line, index) => (index === 0 ? [line] : [newline, line])));
}
