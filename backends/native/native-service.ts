import { create } from "@bufbuild/protobuf";
import {
  Metadata,
  type Server,
  type ServerDuplexStream,
  type ServerUnaryCall,
  type StatusObject,
  type sendUnaryData,
} from "@grpc/grpc-js";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import {
  type CheckpointRequest,
  type CheckpointResponse,
  CheckpointResponseSchema,
  type DescribeRequest,
  type DescribeResponse,
  DescribeResponseSchema,
  type RestoreRequest,
  type RestoreResponse,
  RestoreResponseSchema,
  Trainer,
  type UpdateRequest,
  type UpdateResponse,
  UpdateResponseSchema,
  type UpdateStart,
} from "../../proto/gen/outrigger/v1/trainer_pb.ts";
import { grpcService } from "../../runtime/grpc-service.ts";
import { hasBearerKey } from "./bearer-key.ts";
import { toGrpcStatus } from "./grpc-error.ts";
import { decodeSample, decodeSettings, encodeResult } from "./grpc-messages.ts";
import type { NativeTrainer } from "./training/native-trainer.ts";

export interface NativeServiceOptions {
  readonly trainer: NativeTrainer;
  readonly description: {
    readonly model: string;
    readonly compute: string;
    readonly computeReason: string;
    readonly maxSequenceLength: number;
    readonly policyUrl: string;
  };
  /** Callers must send `authorization: Bearer KEY`; undefined asks for nothing. */
  readonly apiKey?: string | undefined;
}

/** Samples of one update are held in memory until it ends; this is about 20 GB of them. */
const maxUpdateTokens = 1 << 29;

type UpdateCall = ServerDuplexStream<UpdateRequest, UpdateResponse>;

/** Adds the trainer service to a server. */
export function addNativeService(server: Server, options: NativeServiceOptions): void {
  const { trainer, description } = options;
  const unary =
    <In, Out>(run: (request: In) => Promise<Out> | Out) =>
    (call: ServerUnaryCall<In, Out>, respond: sendUnaryData<Out>): void => {
      const answer = async (): Promise<Out> => {
        checkKey(call.metadata, options.apiKey);
        return run(call.request);
      };
      answer().then(
        (response) => respond(null, response),
        (error: unknown) => respond(toGrpcStatus(error)),
      );
    };
  server.addService(grpcService(Trainer), {
    describe: unary<DescribeRequest, DescribeResponse>(() =>
      create(DescribeResponseSchema, {
        kind: "native",
        ...description,
        losses: ["ppo", "cispo", "gspo", "importance-sampling"],
        corrections: ["none", "truncate", "mask"],
        supportsKl: true,
        supportsRestore: true,
        version: BigInt(trainer.version),
      }),
    ),
    checkpoint: unary<CheckpointRequest, CheckpointResponse>(async ({ name }) => {
      const { location, version } = await trainer.checkpoint(name);
      return create(CheckpointResponseSchema, { location, version: BigInt(version) });
    }),
    restore: unary<RestoreRequest, RestoreResponse>(async ({ name, asVersion }) => {
      const { version } = await (asVersion === undefined
        ? trainer.restore(name)
        : trainer.rollBack(name, Number(asVersion)));
      return create(RestoreResponseSchema, { version: BigInt(version) });
    }),
    update: (call: UpdateCall) => {
      serveUpdate(call, options).then(
        () => call.end(),
        (error: unknown) => failStream(call, toGrpcStatus(error)),
      );
    },
  });
}

function failStream(call: UpdateCall, status: StatusObject): void {
  if (call.cancelled) return;
  // grpc-js takes the status of a stream from its `error` event.
  call.emit("error", Object.assign(new Error(status.details), status));
}

async function serveUpdate(call: UpdateCall, options: NativeServiceOptions): Promise<void> {
  checkKey(call.metadata, options.apiKey);
  const abort = new AbortController();
  call.on("cancelled", () =>
    abort.abort(
      new OutriggerError("cancelled", "the update was cancelled", { origin: "controller" }),
    ),
  );
  const { start, samples } = await readUpdate(call);
  // A client that cancels while sending ends the stream, which must not look like the last sample.
  if (call.cancelled) return;
  if (start.settings === undefined) throw malformed("the update has no settings");
  const result = await options.trainer.update(
    {
      updateId: start.updateId,
      fromVersion: Number(start.fromVersion),
      settings: decodeSettings(start.settings),
      samples,
    },
    abort.signal,
    (samplesDone) => {
      const value = { samplesDone, samplesTotal: samples.length };
      call.write(create(UpdateResponseSchema, { message: { case: "progress", value } }));
    },
  );
  const value = encodeResult(result);
  call.write(create(UpdateResponseSchema, { message: { case: "result", value } }));
}

const malformed = (message: string): OutriggerError =>
  new OutriggerError("update-malformed", message, {
    origin: "controller",
    hint: "Settings come first, then samples, then the end of the stream.",
  });

/** Reads to the client's half-close. (Iterating over the call would destroy its other half too.) */
function readUpdate(call: UpdateCall): Promise<{ start: UpdateStart; samples: TrainingSample[] }> {
  return new Promise((resolve, reject) => {
    let start: UpdateStart | undefined;
    const samples: TrainingSample[] = [];
    let tokens = 0;
    const take = ({ message }: UpdateRequest): void => {
      if (message.case === "start") {
        if (start !== undefined) throw malformed("the update starts twice");
        start = message.value;
      } else if (message.case === "sample") {
        if (start === undefined) throw malformed("a sample came before the settings");
        tokens += message.value.tokenIds.length;
        if (tokens > maxUpdateTokens) throw malformed(`more than ${maxUpdateTokens} tokens`);
        samples.push(decodeSample(message.value));
      }
    };
    call.on("data", (request: UpdateRequest) => {
      try {
        take(request);
      } catch (error) {
        reject(error as Error);
      }
    });
    call.on("error", reject);
    call.on("end", () => {
      if (start === undefined) reject(malformed("the update is empty"));
      else if (start.updateId === "") reject(malformed("the update has no id"));
      else resolve({ start, samples });
    });
  });
}

function checkKey(metadata: Metadata, apiKey: string | undefined): void {
  if (apiKey === undefined || hasBearerKey(metadata.get("authorization")[0], apiKey)) return;
  throw new OutriggerError("unauthenticated", "the backend's API key is missing or wrong", {
    origin: "user",
    hint: "Give the controller the key that the backend was started with.",
  });
}
