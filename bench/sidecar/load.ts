import { Agent, request } from "node:http";

export interface LoadRequest {
  readonly stream: boolean;
  readonly tokens: number;
  readonly pauseMs?: number;
  /** Length of the prompt's text. */
  readonly promptBytes?: number;
}

export interface Measured {
  /** Milliseconds from the request to the first body byte. */
  readonly firstByteMs: number;
  /** Milliseconds from the engine's writing of a chunk to its arrival here. */
  readonly chunkDelaysMs: readonly number[];
}

const agent = new Agent({ keepAlive: true, maxSockets: 2_000 });
const bodies = new Map<string, Buffer>();

/** One call, read to its end. */
export function call(port: number, load: LoadRequest): Promise<Measured> {
  const key = JSON.stringify(load);
  let body = bodies.get(key);
  if (body === undefined) {
    body = Buffer.from(
      JSON.stringify({
        model: "m",
        messages: [{ role: "user", content: "word ".repeat((load.promptBytes ?? 1_000) / 5) }],
        max_tokens: load.tokens,
        ...(load.stream ? { stream: true } : {}),
        ...(load.pauseMs === undefined ? {} : { user: String(load.pauseMs) }),
      }),
    );
    bodies.set(key, body);
  }
  return send(port, body, load.pauseMs !== undefined);
}

function send(port: number, body: Buffer, readsTimes: boolean): Promise<Measured> {
  return new Promise((resolve, reject) => {
    const startedMs = performance.now();
    let firstByteMs = 0;
    const chunkDelaysMs: number[] = [];
    const outgoing = request(
      {
        port,
        host: "127.0.0.1",
        agent,
        method: "POST",
        path: "/v1/chat/completions",
        headers: { "content-type": "application/json", "content-length": body.length },
      },
      (response) => {
        response.on("data", (chunk: Buffer) => {
          if (firstByteMs === 0) firstByteMs = performance.now() - startedMs;
          if (!readsTimes) return;
          const nowMs = performance.timeOrigin + performance.now();
          for (const [, t] of chunk.toString("latin1").matchAll(/"t":([\d.]+)/g)) {
            chunkDelaysMs.push(nowMs - Number(t));
          }
        });
        response.on("end", () => {
          if (response.statusCode === 200) resolve({ firstByteMs, chunkDelaysMs });
          else reject(new Error(`status ${response.statusCode}`));
        });
        response.on("error", reject);
      },
    );
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}

/** `count` calls, `concurrency` at a time. */
export async function callMany(
  port: number,
  load: LoadRequest,
  count: number,
  concurrency: number,
): Promise<Measured[]> {
  const results: Measured[] = [];
  let started = 0;
  const worker = async (): Promise<void> => {
    while (started < count) {
      started += 1;
      results.push(await call(port, load));
    }
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  return results;
}

export function percentile(values: readonly number[], fraction: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(fraction * sorted.length))] ?? Number.NaN;
}
