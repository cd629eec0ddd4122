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

  function parse(raw: Buffer, terminated: boolean): SseBlock {
    const block = parseBlock(raw, terminated, first);
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
    if (afterCr && bytes.length > 0) {
      afterCr = false;
      if (nextLf === 0) {
        position = 1;
        if (crClosedBlock) {
          blocks.push(new SseBlock(bytes.subarray(0, 1), null, -1, null, true));
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
        blocks.push(parse(take(bytes.subarray(start, position)), true));
        start = position;
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
    end: () => (heldBytes === 0 ? null : parse(take(NO_BYTES), false)),
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

function parseBlock(raw: Buffer, terminated: boolean, first: boolean): SseBlock {
  const hasBom = first && raw[0] === 0xef && raw[1] === 0xbb && raw[2] === 0xbf;
  let position = hasBom ? 3 : 0;
  let event: string | null = null;
  let data: Buffer | null = null;
  let dataStart = -1;
  let parts: Buffer[] | null = null;
  while (position < raw.length) {
    const end = lineEndFrom(raw, position);
    const value = valueStart(raw, position, end);
    if (isField(raw, position, end, "data")) {
      const line = raw.subarray(value, end);
      if (data === null) {
        data = line;
        dataStart = value;
      } else if (parts === null) parts = [data, line];
      else parts.push(line);
    } else if (isField(raw, position, end, "event")) event = raw.toString("utf8", value, end);
    position = end + (raw[end] === CR && raw[end + 1] === LF ? 2 : 1);
  }
  if (parts !== null) return new SseBlock(raw, joinLines(parts), -1, event, terminated);
  return new SseBlock(raw, data, dataStart, event, terminated);
}

function lineEndFrom(raw: Buffer, from: number): number {
  // Data lines are long and line ends rare: two native searches beat a loop over the bytes. The
  // search for CR is bounded by the LF, so that a stream without CR is scanned once.
  const lf = raw.indexOf(LF, from);
  const end = lf === -1 ? raw.length : lf;
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

function valueStart(raw: Buffer, start: number, end: number): number {
  const colon = raw.subarray(start, Math.min(end, start + 8)).indexOf(COLON);
  if (colon === -1) return end;
  const after = start + colon + 1;
  return after < end && raw[after] === SPACE ? after + 1 : after;
}

function joinLines(lines: readonly Buffer[]): Buffer {
  const newline = Buffer.from("\n");
  return Buffer.concat(lines.flatMap((line, index) => (index === 0 ? [line] : [newline, line])));
}
