import { once } from "node:events";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  ChannelCredentials,
  type ClientDuplexStream,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type {
  BackendDescription,
  TrainerBackend,
  UpdateRequest,
  UpdateResult,
} from "../../core/trainer-backend.ts";
import {
  CheckpointRequestSchema,
  DescribeRequestSchema,
  type UpdateRequest as RequestMessage,
  type UpdateResponse as ResponseMessage,
  RestoreRequestSchema,
  Trainer,
  UpdateRequestSchema,
} from "../../proto/gen/outrigger/v1/trainer_pb.ts";
import { type CallOptions, openGrpcClient } from "../../runtime/grpc-client.ts";
import { fromGrpcError } from "./grpc-error.ts";
import { decodeResult, encodeSample, encodeSettings } from "./grpc-messages.ts";

export interface NativeBackendOptions {
  /** `host:port` of the native backend's process. */
  readonly grpcAddress: string;
  /** The key that the process was started with, where it listens beyond loopback. */
  readonly apiKey?: string;
  readonly credentials?: ChannelCredentials;
  readonly onProgress?: (samplesDone: number, samplesTotal: number) => void;
}

export interface NativeBackend extends TrainerBackend {
  describe(
    signal?: AbortSignal,
  ): Promise<BackendDescription & { readonly computeReason: string; readonly version: number }>;
}

/** The native backend's process as a `TrainerBackend`. It may be down: calls then say so. */
export function openNativeBackend(options: NativeBackendOptions): NativeBackend {
  const address = options.grpcAddress;
  const client = openGrpcClient(
    address,
    options.credentials ?? ChannelCredentials.createInsecure(),
  );
  const metadata = new Metadata();
  if (options.apiKey !== undefined) metadata.set("authorization", `Bearer ${options.apiKey}`);
  const withSignal = (signal: AbortSignal | undefined): CallOptions =>
    signal === undefined ? { metadata } : { metadata, signal };

  const describeRaw = (signal?: AbortSignal) =>
    translated(address, signal, () =>
      client.unary(Trainer.method.describe, create(DescribeRequestSchema), withSignal(signal)),
    );
  return {
    describe: async (signal) => {
      const raw = await describeRaw(signal);
      return {
        kind: raw.kind,
        model: raw.model,
        compute: raw.compute,
        computeReason: raw.computeReason,
        maxSequenceLength: raw.maxSequenceLength,
        losses: raw.losses as BackendDescription["losses"],
        corrections: raw.corrections as BackendDescription["corrections"],
        supportsKl: raw.supportsKl,
        supportsRestore: raw.supportsRestore,
        version: Number(raw.version),
      };
    },
    policyEndpoints: async (signal) => {
      const raw = await describeRaw(signal);
      return [{ url: raw.policyUrl, model: raw.model, version: Number(raw.version) }];
    },
    update: (request, signal) =>
      translated(address, signal, () => {
        signal?.throwIfAborted();
        const call = client.bidi(Trainer.method.update, metadata);
        return runUpdate(call, request, signal, options.onProgress);
      }),
    checkpoint: async (name, signal) => {
      const { location, version } = await translated(address, signal, () =>
        client.unary(
          Trainer.method.checkpoint,
          create(CheckpointRequestSchema, { name }),
          withSignal(signal),
        ),
      );
      return { location, version: Number(version) };
    },
    restore: async (name, signal) => {
      const { version } = await translated(address, signal, () =>
        client.unary(
          Trainer.method.restore,
          create(RestoreRequestSchema, { name }),
          withSignal(signal),
        ),
      );
      return { version: Number(version) };
    },
    rollBack: async (name, toVersion, signal) => {
      const { version } = await translated(address, signal, () =>
        client.unary(
          Trainer.method.restore,
          create(RestoreRequestSchema, { name, asVersion: BigInt(toVersion) }),
          withSignal(signal),
        ),
      );
      return { version: Number(version) };
    },
    close: async () => client.close(),
  };
}

/** The caller's own abort stays what it was; a gRPC failure becomes an `OutriggerError`. */
async function translated<T>(
  address: string,
  signal: AbortSignal | undefined,
  run: () => Promise<T>,
): Promise<T> {
  try {
    return await run();
  } catch (error) {
    if (signal?.aborted === true) throw signal.reason;
    if (error instanceof OutriggerError) throw error;
    if (error instanceof Error && "code" in error && "details" in error) {
      throw fromGrpcError(error as ServiceError, address);
    }
    throw error;
  }
}

type UpdateCall = ClientDuplexStream<RequestMessage, ResponseMessage>;

async function runUpdate(
  call: UpdateCall,
  request: UpdateRequest,
  signal: AbortSignal | undefined,
  onProgress: NativeBackendOptions["onProgress"],
): Promise<UpdateResult> {
  const cancel = (): void => call.cancel();
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    // The answer is awaited from the start: the backend may refuse before it has read all.
    const answer = readResult(call, onProgress);
    const sent = sendUpdate(call, request).catch((error: unknown) => {
      call.cancel();
      throw error;
    });
    const [result] = await Promise.all([answer, sent]);
    return result;
  } finally {
    signal?.removeEventListener("abort", cancel);
  }
}

function readResult(
  call: UpdateCall,
  onProgress: NativeBackendOptions["onProgress"],
): Promise<UpdateResult> {
  return new Promise((resolve, reject) => {
    let result: UpdateResult | undefined;
    call.on("data", ({ message }: ResponseMessage) => {
      if (message.case === "progress") {
        onProgress?.(message.value.samplesDone, message.value.samplesTotal);
      } else if (message.case === "result") result = decodeResult(message.value);
    });
    call.on("error", reject);
    call.on("end", () => {
      if (result !== undefined) resolve(result);
    });
    call.on("status", ({ code }: { code: number }) => {
      if (code !== 0 || result !== undefined) return;
      reject(
        new OutriggerError("backend-failed", "the backend ended the update without a result", {
          origin: "backend",
          retryable: true,
        }),
      );
    });
  });
}

async function sendUpdate(call: UpdateCall, request: UpdateRequest): Promise<void> {
  let isOver = false;
  const over = new Promise<void>((resolve) => {
    call.once("close", resolve).once("status", () => resolve());
  }).then(() => {
    isOver = true;
  });
  const send = async (message: MessageInitShape<typeof UpdateRequestSchema>["message"]) => {
    if (isOver || message === undefined) return;
    if (!call.write(create(UpdateRequestSchema, { message }))) {
      await Promise.race([once(call, "drain").catch(() => undefined), over]);
    }
  };
  await send({
    case: "start",
    value: {
      updateId: request.updateId,
      fromVersion: BigInt(request.fromVersion),
      settings: encodeSettings(request.settings),
    },
  });
  for await (const sample of request.samples) {
    if (isOver) return;
    await send({ case: "sample", value: encodeSample(sample) });
  }
  call.end();
}
