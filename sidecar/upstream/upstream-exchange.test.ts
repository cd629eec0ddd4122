import { createServer } from "node:http";
import { type AddressInfo, createServer as createTcpServer, type Socket } from "node:net";
import { expect, it } from "vitest";
import { openEnginePool } from "./engine-pool.ts";
import { UpstreamExchange } from "./upstream-exchange.ts";

it("an answer that its listener cannot end is a failure, not a wait for ever", async () => {
  const server = createServer((_request, response) => response.end("{}"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const pool = openEnginePool(`http://127.0.0.1:${port}`, {
    connectTimeoutMs: 5_000,
    firstByteTimeoutMs: 0,
    idleTimeoutMs: 0,
  });
  const nothing = (): void => undefined;
  const failure = await new Promise((resolve) => {
    const exchange = new UpstreamExchange({
      onSent: nothing,
      onHead: nothing,
      onBytes: nothing,
      onEnd: () => {
        throw new RangeError("too deep");
      },
      onFailure: resolve,
    });
    exchange.start(pool, { method: "GET", path: "/", headers: [], body: null });
  });
  expect(failure).toEqual({ kind: "reset", message: "too deep" });
  await pool.close();
  server.close();
});

it.each([
  ["nothing", "", "stale-socket"],
  ["a head that is cut off", "HTTP/1.1 200 OK\r\nconte", "reset"],
  ["an informational answer", "HTTP/1.1 103 Early Hints\r\n\r\n", "reset"],
  ["an unasked 100", "HTTP/1.1 100 Continue\r\n\r\n", "reset"],
])("a used connection that ends after %s: only zero bytes are stale", async (_, said, kind) => {
  const sockets: Socket[] = [];
  const server = createTcpServer((socket) => {
    let count = 0;
    sockets.push(socket);
    socket.on("data", () => {
      count += 1;
      if (count === 1) socket.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
      else socket.end(said);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const pool = openEnginePool(`http://127.0.0.1:${port}`, {
    connectTimeoutMs: 5_000,
    firstByteTimeoutMs: 0,
    idleTimeoutMs: 0,
  });
  const ask = (): Promise<string> =>
    new Promise((resolve) => {
      const nothing = (): void => undefined;
      const exchange = new UpstreamExchange({
        onSent: nothing,
        onHead: nothing,
        onBytes: nothing,
        onEnd: () => resolve("answered"),
        onFailure: (failure) => resolve(failure.kind),
      });
      exchange.start(pool, { method: "GET", path: "/", headers: [], body: null });
    });
  expect(await ask()).toBe("answered");
  // undici counts the connection as free only after it has told of the end.
  await new Promise((resolve) => setImmediate(resolve));
  expect(await ask()).toBe(kind);
  expect(sockets).toHaveLength(1);
  await pool.close();
  server.close();
});
