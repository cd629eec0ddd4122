import { type DescMethodBiDiStreaming, fromBinary } from "@bufbuild/protobuf";
import type { ServerDuplexStream, ServiceDefinition } from "@grpc/grpc-js";
import {
  type ConnectRequest,
  ConnectRequestSchema,
  type ConnectResponse,
  SampleStream,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import { grpcMethod } from "../../runtime/grpc-service.ts";
import { restoreIds } from "../../runtime/records/restore-ids.ts";

/** A message with its size on the wire, or what is wrong with its bytes. */
export type ReceivedMessage =
  | { readonly ok: true; readonly message: ConnectRequest["message"]; readonly bytes: number }
  | { readonly ok: false; readonly problem: string };

export type SampleStreamCall = ServerDuplexStream<ReceivedMessage, ConnectResponse>;

const connect: DescMethodBiDiStreaming = SampleStream.method.connect;

/** The SampleStream service, with sizes kept for back-pressure. */
export const sampleStreamService: ServiceDefinition = {
  [connect.localName]: {
    ...grpcMethod(SampleStream.method.connect),
    requestDeserialize: (bytes: Buffer): ReceivedMessage => {
      try {
        const { message } = fromBinary(ConnectRequestSchema, bytes);
        if (message.case === "record" && message.value.body.case === "call")
          restoreIds(message.value.body.value);
        return { ok: true, message, bytes: bytes.length };
      } catch (error) {
        return { ok: false, problem: (error as Error).message };
      }
    },
  },
};
