import { createServer } from "node:http";
import process from "node:process";
import { Pool } from "undici";

/** The baseline: Node's HTTP server and an undici pool, nothing else. */
const pool = new Pool(process.argv[2] ?? "", { headersTimeout: 0, bodyTimeout: 0 });
const server = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on("data", (part: Buffer) => parts.push(part));
  request.on("end", () => {
    const [first] = parts;
    const { host: _host, connection: _connection, ...headers } = request.headers;
    pool.dispatch(
      {
        method: request.method as "GET" | "POST",
        path: request.url ?? "/",
        headers: headers as Record<string, string>,
        body: parts.length === 1 && first !== undefined ? first : Buffer.concat(parts),
      },
      {
        onRequestStart: (controller) => {
          response.on("close", () => {
            if (!response.writableFinished) controller.abort(new Error("client gone"));
          });
        },
        onResponseStart: (_controller, status, responseHeaders) => {
          response.writeHead(status, responseHeaders);
        },
        onResponseData: (controller, data) => {
          if (response.write(data)) return;
          controller.pause();
          response.once("drain", () => controller.resume());
        },
        onResponseEnd: () => {
          response.end();
        },
        onResponseError: () => {
          response.destroy();
        },
      },
    );
  });
});
server.listen(0, "127.0.0.1", () => {
  process.send?.({ port: (server.address() as { port: number }).port });
});
