import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
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
