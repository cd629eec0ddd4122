import type { ChunkScan } from "../dialects/chunk-scan.ts";
import { type JsonValue, parseJson } from "../dialects/json-value.ts";

/**
 * Everything of an event stream up to and including one blank line: an event, or comments alone.
 * Concatenating the `raw` of all blocks gives the stream back, byte for byte.
 * A class, against the house rule, because `json()` is asked for by both the translator and the
 * capture and must be parsed once, and only after the relay of the bytes.
 */
export class SseBlock {
  readonly raw: Buffer;
  /** Where the data stands in `raw`; -1 with no or several data lines. */
  readonly dataStart: number;
  readonly #dataEnd: number;
  readonly event: string | null;
  /** False for the tail of a stream that ended without a blank line. */
  readonly terminated: boolean;
  /** Places in `raw`, when the relay has looked for them. */
  scan: ChunkScan | undefined;
  #data: Buffer | null | undefined;
  #json: JsonValue | undefined;
  #parsed = false;

  private constructor(raw: Buffer, range: DataRange, event: string | null, terminated: boolean) {
    this.raw = raw;
    this.dataStart = range.start;
    this.#dataEnd = range.end;
    this.#data = range.joined;
    this.event = event;
    this.terminated = terminated;
  }

  /** Data on one line, `raw[start, end)`. */
  static ofLine(
    raw: Buffer,
    start: number,
    end: number,
    event: string | null,
    terminated: boolean,
  ): SseBlock {
    return new SseBlock(raw, { start, end, joined: undefined }, event, terminated);
  }

  /** Data on several lines, joined; null for a block without any. */
  static ofJoined(
    raw: Buffer,
    joined: Buffer | null,
    event: string | null,
    terminated: boolean,
  ): SseBlock {
    return new SseBlock(raw, { start: -1, end: -1, joined }, event, terminated);
  }

  /** End of the data that starts at `dataStart`. */
  get dataEnd(): number {
    return this.#dataEnd;
  }

  get isParsed(): boolean {
    return this.#parsed;
  }

  get hasData(): boolean {
    return this.#data !== null;
  }

  /** The data lines joined with line feeds; null for a block without any. */
  get data(): Buffer | null {
    if (this.#data === undefined) this.#data = this.raw.subarray(this.dataStart, this.#dataEnd);
    return this.#data;
  }

  get isDone(): boolean {
    if (this.dataStart !== -1) {
      const length = this.#dataEnd - this.dataStart;
      // A look at the first byte spares most blocks the rest.
      if (length < 6 || length > 16 || this.raw[this.dataStart] === OPEN_BRACE) return false;
    }
    const { data } = this;
    return data !== null && data.length < 16 && data.toString("latin1").trim() === "[DONE]";
  }

  /** The data as JSON; undefined where there is none (`[DONE]`, comments, broken text). */
  json(): JsonValue | undefined {
    if (!this.#parsed) {
      this.#parsed = true;
      if (this.dataStart !== -1) {
        this.#json = parseJson(this.raw.toString("utf8", this.dataStart, this.#dataEnd));
      } else if (this.data !== null) this.#json = parseJson(this.data.toString("utf8"));
    }
    return this.#json;
  }
}

const OPEN_BRACE = 0x7b;

interface DataRange {
  readonly start: number;
  readonly end: number;
  readonly joined: Buffer | null | undefined;
}
