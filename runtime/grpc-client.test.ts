import { create } from "@bufbuild/protobuf";
import { credentials, type sendUnaryData } from "@grpc/grpc-js";
import { afterEach, expect, it, vi } from "vitest";
import {
  DescribeRequestSchema,
  type DescribeResponse,
  DescribeResponseSchema,
  Trainer,
} from "../proto/gen/outrigger/v1/trainer_pb.ts";
import { openGrpcClient } from "./grpc-client.ts";
import { bindGrpcServer, closeGrpcServer, createGrpcServer } from "./grpc-server.ts";
import { grpcService } from "./grpc-service.ts";

afterEach(() => vi.unstubAllEnvs());

it("reaches a server directly where the environment names a proxy", async () => {
  for (const name of ["grpc_proxy", "http_proxy", "https_proxy"]) {
    vi.stubEnv(name, "http://127.0.0.1:9");
  }
  vi.stubEnv("no_proxy", "");
  vi.stubEnv("no_grpc_proxy", "");
  const server = createGrpcServer();
  const unused = (): never => {
    throw new Error("not called");
  };
  server.addService(grpcService(Trainer), {
    describe: (_call: unknown, respond: sendUnaryData<DescribeResponse>) =>
      respond(null, create(DescribeResponseSchema, { model: "small" })),
    checkpoint: unused,
    restore: unused,
    update: unused,
  });
  const port = await bindGrpcServer(server, { host: "127.0.0.1", port: 0 });
  const client = openGrpcClient(`127.0.0.1:${port}`, credentials.createInsecure());
  const answer = await client.unary(Trainer.method.describe, create(DescribeRequestSchema), {
    timeoutMs: 5000,
  });
  expect(answer.model).toBe("small");
  client.close();
  await closeGrpcServer(server, 0);
});
