import {
  createServer,
  type IncomingHttpHeaders,
  type Server,
  type ServerResponse,
} from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { setTimeout as delay, setImmediate } from "node:timers/promises";
import type { JsonRecord } from "../../sidecar/dialects/json-value.ts";

/** One thing that the engine does with a connection. */
export type Step =
  | { readonly head: number; readonly headers?: Readonly<Record<string, string>> }
  /** One write, and so one HTTP chunk and (with no delay algorithm) one TCP segment. */
  | { readonly write: string | Uint8Array }
  /** Bytes on the socket itself, past HTTP: for broken heads and framing. */
  | { readonly raw: string | Uint8Array }
  | { readonly delayMs: number }
  | { readonly until: Promise<unknown> }
  | { readonly end: true }
  /** A TCP reset, at once. */
  | { readonly reset: true };

export type EngineScript = (
  request: EngineRequest,
) => Iterable<Step> | AsyncIterable<Step> | Promise<Iterable<Step>>;

export interface EngineRequest {
  /** 0, 1, 2, … in order of arrival. */
  readonly index: number;
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  /** As sent: name, value, name, value, … */
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
  /** The body as an object; empty where it is none. */
  readonly json: JsonRecord;
  /** When the last body byte had arrived, on `performance.now()`'s clock. */
  readonly arrivedAtMs: number;
  /** Resolves with the time when the other side hung up before the answer ended. */
  readonly aborted: Promise<number>;
  /** Resolves when the connection is done with this request, either way. */
  readonly finished: Promise<{ readonly wasAborted: boolean }>;
}

export interface ScriptedEngine {
  /** `http://127.0.0.1:PORT`, without `/v1`. */
  readonly url: string;
  readonly requests: readonly EngineRequest[];
  /** Sockets that are open now. */
  readonly openSockets: number;
  /** Connections accepted so far. */
  readonly acceptedSockets: number;
  /** What the next requests get; running ones go on as they began. */
  setScript(script: EngineScript): void;
  close(): Promise<void>;
}

/** An engine on loopback that answers exactly as its script says, byte by byte if need be. */
export async function startScriptedEngine(script: EngineScript): Promise<ScriptedEngine> {
  let current = script;
  let accepted = 0;
  const requests: EngineRequest[] = [];
  const sockets = new Set<Socket>();
  const server = createServer({ maxHeaderSize: 256 * 1024 }, (incoming, response) => {
    const chunks: Buffer[] = [];
    incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
    incoming.on("error", () => {});
    incoming.on("end", () => {
      const body = Buffer.concat(chunks);
      const { method = "", url = "", headers, rawHeaders } = incoming;
      const index = requests.length;
      const facts = { index, method, url, headers, rawHeaders, body, json: parse(body) };
      const request = { ...facts, arrivedAtMs: performance.now(), ...watch(response) };
      requests.push(request);
      void perform(current, request, response);
    });
  });
  server.on("connection", (socket) => {
    accepted += 1;
    socket.setNoDelay(true);
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
  });
  server.keepAliveTimeout = 60_000;
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    get openSockets() {
      return sockets.size;
    },
    get acceptedSockets() {
      return accepted;
    },
    setScript(next) {
      current = next;
    },
    close: () => close(server, sockets),
  };
}

/** Every request gets these steps. */
export function sameFor(steps: readonly Step[]): EngineScript {
  return () => steps;
}

/** `text` as an event stream, cut into writes of the given sizes (repeated). */
export function streamSteps(bytes: string | Uint8Array, sizes: readonly number[] = []): Step[] {
  const whole = Buffer.from(bytes);
  const steps: Step[] = [{ head: 200, headers: { "content-type": "text/event-stream" } }];
  for (let at = 0, turn = 0; at < whole.length; turn += 1) {
    const size = Math.max(1, sizes[turn % Math.max(1, sizes.length)] ?? whole.length);
    steps.push({ write: whole.subarray(at, at + size) });
    at += size;
  }
  return [...steps, { end: true }];
}

export function jsonSteps(status: number, value: unknown): Step[] {
  const body = typeof value === "string" ? value : JSON.stringify(value);
  const headers = {
    "content-type": "application/json",
    "content-length": String(Buffer.byteLength(body)),
  };
  return [{ head: status, headers }, { write: body }, { end: true }];
}

/** The steps, broken by a reset (or a clean end) after this many body bytes. */
export function breakAt(
  steps: Iterable<Step>,
  byteCount: number,
  how: "reset" | "end" = "reset",
): Step[] {
  const kept: Step[] = [];
  let left = byteCount;
  for (const step of steps) {
    if ("end" in step) break;
    if (!("write" in step)) {
      kept.push(step);
      continue;
    }
    const bytes = Buffer.from(step.write);
    if (bytes.length >= left) {
      if (left > 0) kept.push({ write: bytes.subarray(0, left) });
      break;
    }
    kept.push(step);
    left -= bytes.length;
  }
  return [...kept, how === "reset" ? { reset: true } : { end: true }];
}

async function perform(
  script: EngineScript,
  request: EngineRequest,
  response: ServerResponse,
): Promise<void> {
  const { socket } = response;
  for await (const step of await script(request)) {
    if (response.destroyed || socket === null || socket.destroyed) return;
    if ("head" in step) {
      response.writeHead(step.head, step.headers);
      response.flushHeaders();
    } else if ("write" in step) await write(response, step.write);
    else if ("raw" in step) socket.write(step.raw);
    else if ("delayMs" in step) await delay(step.delayMs);
    else if ("until" in step) await Promise.race([step.until, request.aborted]);
    else if ("reset" in step) await reset(socket);
    else response.end();
  }
}

/**
 * A reset with no end of stream before it, which is what `resetAndDestroy` sends first (the flag
 * is the one that it sets). Two turns of the event loop let a reader in this process have what was
 * written: libuv reports data and reset together as a clean end.
 */
async function reset(socket: Socket): Promise<void> {
  await setImmediate();
  await setImmediate();
  Object.assign(socket, { resetAndClosing: true });
  socket.destroy();
}

/** Waits until the kernel has the bytes: a reset must not overtake them, a slow reader is felt. */
async function write(response: ServerResponse, bytes: string | Uint8Array): Promise<void> {
  await new Promise<void>((resolve) => {
    response.once("close", resolve);
    response.write(bytes, () => {
      response.off("close", resolve);
      resolve();
    });
  });
}

function watch(response: ServerResponse): Pick<EngineRequest, "aborted" | "finished"> {
  const finished = new Promise<{ wasAborted: boolean }>((resolve) => {
    response.once("close", () => resolve({ wasAborted: !response.writableFinished }));
  });
  const aborted = new Promise<number>((resolve) => {
    response.once("close", () => {
      if (!response.writableFinished) resolve(performance.now());
    });
  });
  return { aborted, finished };
}

function parse(body: Buffer): JsonRecord {
  try {
    const value: unknown = JSON.parse(body.toString());
    return typeof value === "object" && value !== null ? (value as JsonRecord) : {};
  } catch {
    return {};
  }
}

async function close(server: Server, sockets: ReadonlySet<Socket>): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  for (const socket of sockets) socket.destroy();
  await closed;
}
