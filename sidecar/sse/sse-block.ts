import { type JsonValue, parseJson } from "../dialects/json-value.ts";

/**
 * Everything of an event stream up to and including one blank line: an event, or comments alone.
 * Concatenating the `raw` of all blocks gives the stream back, byte for byte.
 * A class, against the house rule, because `json()` is asked for by both the translator and the
 * capture and must be parsed once, and only after the relay of the bytes.
 */
export class SseBlock {
  readonly raw: Buffer;
  /** The data lines joined with line feeds; null for a block without any. */
  readonly data: Buffer | null;
  /** `data` is `raw.subarray(dataStart, dataStart + data.length)`; -1 with several data lines. */
  readonly dataStart: number;
  readonly event: string | null;
  /** False for the tail of a stream that ended without a blank line. */
  readonly terminated: boolean;
  #json: JsonValue | undefined;
  #parsed = false;

  constructor(
    raw: Buffer,
    data: Buffer | null,
    dataStart: number,
    event: string | null,
    terminated: boolean,
  ) {
    this.raw = raw;
    this.data = data;
    this.dataStart = dataStart;
    this.event = event;
    this.terminated = terminated;
  }

  get isDone(): boolean {
    return this.data !== null && this.data.length < 16 && this.data.toString().trim() === "[DONE]";
  }

  /** The data as JSON; undefined where there is none (`[DONE]`, comments, broken text). */
  json(): JsonValue | undefined {
    if (!this.#parsed) {
      this.#parsed = true;
      if (this.data !== null) this.#json = parseJson(this.data.toString("utf8"));
    }
    return this.#json;
  }
}
