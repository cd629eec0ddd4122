import { Server, ServerCredentials } from "@grpc/grpc-js";
import { OutriggerError } from "../core/outrigger-error.ts";
import { grpcChannelOptions } from "./grpc-service.ts";

export function createGrpcServer(): Server {
  return new Server(grpcChannelOptions);
}

/** Binds and serves; gives the port that was bound (0 asks for a free one). */
export function bindGrpcServer(
  server: Server,
  options: {
    readonly host: string;
    readonly port: number;
    readonly credentials?: ServerCredentials;
  },
): Promise<number> {
  return new Promise((resolve, reject) => {
    server.bindAsync(
      `${options.host.includes(":") ? `[${options.host}]` : options.host}:${options.port}`,
      options.credentials ?? ServerCredentials.createInsecure(),
      (error, port) => {
        if (error === null) resolve(port);
        else {
          reject(
            new OutriggerError(
              "port-unavailable",
              `cannot listen on ${options.host}:${options.port}: ${error.message}`,
              {
                origin: "user",
                hint: "Choose another port, or 0 for any free one.",
                cause: error,
              },
            ),
          );
        }
      },
    );
  });
}

/** Lets running calls finish for `graceMs`, then ends them. */
export function closeGrpcServer(server: Server, graceMs: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => server.forceShutdown(), graceMs);
    server.tryShutdown(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}
