import { createServer, request as httpRequest, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { setTimeout as wait } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { describe, expect, it } from "vitest";
import { startScriptedEngine } from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar, until } from "./sidecar-support.ts";

setFlagsFromString("--expose_gc");
const collectGarbage = runInNewContext("gc") as () => void;

/** Small, fast, seeded: the same run each time. */
function mulberry32(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

async function gauge(proxied: TestSidecar, name: string): Promise<number> {
  const text = await (await fetch(`${proxied.url}/metrics`)).text();
  const line = text.split("\n").find((candidate) => candidate.startsWith(`${name} `));
  return Number(line?.split(" ")[1]);
}

const body = (stream: boolean): string =>
  JSON.stringify({ model: "toy", stream, messages: [{ role: "user", content: "hi" }] });

describe("the sidecar survives", () => {
  it("1,000 clients that hang up at random moments", async () => {
    const engine = await startScriptedEngine(
      vllmScript({
        answer: () => ({ content: "word ".repeat(20) }),
        betweenEvents: () => new Promise((resolve) => setImmediate(resolve)),
      }),
    );
    const proxied = await startTestSidecar([engine.url]);
    const random = mulberry32(7);
    const hangUpSomewhere = (): Promise<void> =>
      new Promise((resolve) => {
        const chunksToRead = Math.floor(random() * 30) - 5;
        const outgoing = httpRequest(`${proxied.url}/v1/chat/completions`, { method: "POST" });
        outgoing.on("error", () => undefined);
        outgoing.on("close", resolve);
        outgoing.on("response", (response) => {
          let chunks = 0;
          response.on("error", () => undefined);
          response.on("data", () => {
            chunks += 1;
            if (chunks >= chunksToRead) outgoing.destroy();
          });
        });
        outgoing.end(body(random() < 0.8));
        if (chunksToRead < -2) setImmediate(() => outgoing.destroy());
      });
    const round = async (count: number): Promise<void> => {
      let left = count;
      const worker = async (): Promise<void> => {
        while (left > 0) {
          left -= 1;
          await hangUpSomewhere();
        }
      };
      await Promise.all(Array.from({ length: 25 }, worker));
      await until(() => proxied.sidecar.gateStatus().inFlight === 0);
    };
    const heap = (): number => {
      proxied.calls.length = 0;
      collectGarbage();
      return process.memoryUsage().heapUsed;
    };
    await round(300);
    const before = heap();
    await round(1_000);
    expect(await gauge(proxied, "outrigger_sidecar_open_calls")).toBe(0);
    expect(await gauge(proxied, "outrigger_sidecar_in_flight")).toBe(0);
    // The engine's side of this test remembers each request; that is most of what is left.
    expect(heap() - before).toBeLessThan(24 * 2 ** 20);
    expect(engine.openSockets).toBeLessThanOrEqual(60);
    const answer = await fetch(`${proxied.url}/v1/chat/completions`, {
      method: "POST",
      body: body(false),
    });
    expect(answer.status).toBe(200);
    await answer.text();
    await proxied.close();
    await engine.close();
  });

  it("a 10-second outage with 20 clients that retry: as many engine requests as client requests", async () => {
    const engine = restartableEngine();
    const port = await engine.start(0);
    const proxied = await startTestSidecar([`http://127.0.0.1:${port}`]);
    const warmUp = engine.requests();
    let isOver = false;
    let reached = 0;
    let refused = 0;
    let broken = 0;
    const client = async (): Promise<void> => {
      while (!isOver) {
        try {
          const answer = await fetch(`${proxied.url}/v1/chat/completions`, {
            method: "POST",
            body: body(false),
          });
          await answer.text();
          if (answer.status === 503) {
            refused += 1;
            expect(Number(answer.headers.get("retry-after"))).toBeGreaterThan(0);
            await wait(1_000 * Number(answer.headers.get("retry-after")));
          } else {
            expect(answer.status).toBe(200);
            reached += 1;
            await wait(50);
          }
        } catch {
          // Reset when the engine went down: it may or may not have read the request.
          broken += 1;
        }
      }
    };
    const clients = Array.from({ length: 20 }, client);
    await until(() => reached > 40);
    await engine.stop();
    await wait(10_000);
    const during = reached;
    await engine.start(port);
    await until(() => reached > during + 40);
    isOver = true;
    await Promise.all(clients);
    expect(refused).toBeGreaterThanOrEqual(20);
    // One engine request for each client request that was not refused; none of our own.
    expect(broken).toBeLessThanOrEqual(20);
    const engineRequests = engine.requests() - warmUp;
    expect(engineRequests).toBeGreaterThanOrEqual(reached);
    expect(engineRequests).toBeLessThanOrEqual(reached + broken);
    await proxied.close();
    await engine.stop();
  });

  it("a slow reader of 16 MB: its sidecar holds less than 1 MB", async () => {
    const event = `data: {"choices":[{"index":0,"delta":{"content":"${"x".repeat(8_000)}"},"finish_reason":null}]}\n\n`;
    const count = Math.ceil((16 * 2 ** 20) / event.length);
    let written = 0;
    const engine = await startScriptedEngine(vllmScript());
    const proxied = await startTestSidecar([engine.url]);
    engine.setScript(function* () {
      yield { head: 200, headers: { "content-type": "text/event-stream" } };
      for (written = 0; written < count; written += 1) yield { write: event };
      yield { write: "data: [DONE]\n\n" };
      yield { end: true };
    });
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const outgoing = httpRequest(
        `${proxied.url}/v1/chat/completions`,
        { method: "POST" },
        resolve,
      );
      outgoing.on("error", reject);
      outgoing.end(body(true));
    });
    response.pause();
    // Full everywhere once the engine has written nothing for a while.
    let most = 0;
    for (let quiet = 0, last = -1; quiet < 30; ) {
      most = Math.max(most, await gauge(proxied, "outrigger_sidecar_buffered_bytes"));
      quiet = written === last ? quiet + 1 : 0;
      last = written;
    }
    expect(written).toBeLessThan(count);
    let bytes = 0;
    for await (const part of response) {
      bytes += (part as Buffer).length;
      if (bytes % 64 === 0)
        most = Math.max(most, await gauge(proxied, "outrigger_sidecar_buffered_bytes"));
    }
    expect(bytes).toBe(count * event.length + "data: [DONE]\n\n".length);
    expect(most).toBeGreaterThan(0);
    expect(most).toBeLessThan(2 ** 20);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: true });
    await proxied.close();
    await engine.close();
  });
});

function restartableEngine() {
  let server: Server | undefined;
  let requests = 0;
  const sockets = new Set<Socket>();
  return {
    requests: () => requests,
    start: (port: number): Promise<number> => {
      const next = createServer((request, response) => {
        const parts: Buffer[] = [];
        request.on("data", (part: Buffer) => parts.push(part));
        request.on("end", () => {
          // A client's own; the canary, which may come again after an outage, is not counted.
          const isClients = Buffer.concat(parts).includes('"content":"hi"');
          const choices = [{ index: 0, message: { content: "x" }, finish_reason: "stop" }];
          response.setHeader("content-type", "application/json");
          // One that the engine has read when it goes down is answered 503: asked again, and refused.
          setImmediate(() => {
            if (isClients && !request.socket.destroyed) requests += 1;
            response.end(JSON.stringify({ choices, data: [{ id: "toy" }] }));
          });
        });
      });
      next.on("connection", (socket) => {
        sockets.add(socket);
        socket.on("close", () => sockets.delete(socket));
      });
      server = next;
      return new Promise((resolve) =>
        next.listen(port, "127.0.0.1", () => resolve((next.address() as AddressInfo).port)),
      );
    },
    stop: async (): Promise<void> => {
      const closed = new Promise((resolve) => server?.close(resolve));
      for (const socket of sockets) socket.resetAndDestroy();
      await closed;
    },
  };
}
