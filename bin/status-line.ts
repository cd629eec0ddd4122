/** What moves: drawn over again in place. */
export interface Status {
  readonly name: string;
  readonly done: number;
  readonly total: number;
  /** Most important first: the last ones go when the terminal is narrow. */
  readonly notes: readonly string[];
}

/** Lines that stay, and on a terminal one below them that moves. */
export interface StatusLine {
  line(text: string): void;
  /** Ignored where there is no terminal. */
  show(status: Status): void;
  /** Takes it off the screen. */
  clear(): void;
  close(): void;
}

/** What is used of a `tty.WriteStream`. */
export interface StatusStream {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

const frameMs = 125;
const barWidth = 24;
const minBarWidth = 6;
const eraseLine = "\r\u001b[2K";

export function openStatusLine(stream: StatusStream, now: () => number): StatusLine {
  const isTerminal = stream.isTTY === true;
  let status: Status | undefined;
  let isDrawn = false;
  let drawnAtMs = Number.NEGATIVE_INFINITY;
  let timer: NodeJS.Timeout | undefined;
  const erase = (): void => {
    if (isDrawn) stream.write(eraseLine);
    isDrawn = false;
  };
  const draw = (): void => {
    clearTimeout(timer);
    timer = undefined;
    if (status === undefined) return;
    // One write a frame: nothing in between is ever on the screen.
    stream.write(`${eraseLine}${formatStatus(status, stream.columns ?? 80)}`);
    isDrawn = true;
    drawnAtMs = now();
  };
  const clear = (): void => {
    clearTimeout(timer);
    timer = undefined;
    status = undefined;
    erase();
  };
  return {
    line: (text) => {
      if (isDrawn && status !== undefined) {
        stream.write(`${eraseLine}${text}\n${formatStatus(status, stream.columns ?? 80)}`);
      } else stream.write(`${text}\n`);
    },
    show: (next) => {
      if (!isTerminal) return;
      status = next;
      const waitMs = drawnAtMs + frameMs - now();
      if (waitMs <= 0) draw();
      else timer ??= setTimeout(draw, waitMs).unref();
    },
    clear,
    close: clear,
  };
}

/**
 * At most `columns - 1` characters, so that the terminal does not break the line: first the bar
 * gets shorter and goes, then the last notes go, then the end is cut.
 */
export function formatStatus({ name, done, total, notes }: Status, columns: number): string {
  const room = Math.max(1, columns - 1);
  const count = `${Math.min(done, total)}/${total}`;
  for (let noteCount = notes.length; noteCount >= 0; noteCount -= 1) {
    const tail = [count, ...notes.slice(0, noteCount)].join("  ");
    const width = Math.min(barWidth, room - name.length - tail.length - 2);
    if (width >= minBarWidth) return `${name} ${bar(done, total, width)} ${tail}`;
    const bare = `${name} ${tail}`;
    if (bare.length <= room) return bare;
  }
  return `${name} ${count}`.slice(0, room);
}

function bar(done: number, total: number, width: number): string {
  const filled = total <= 0 ? 0 : Math.floor((Math.min(done, total) / total) * width);
  return "█".repeat(filled) + "░".repeat(width - filled);
}
