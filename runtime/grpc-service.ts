import type { DescMessage, DescMethod, DescService, MessageShape } from "@bufbuild/protobuf";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import type { ClientOptions, MethodDefinition, ServiceDefinition } from "@grpc/grpc-js";

/** A 200,000-token prompt with logprobs and text is a few MB; both ends raise the 4 MB default. */
export const maxMessageBytes = 256 * 1024 * 1024;

export const grpcChannelOptions = {
  "grpc.max_receive_message_length": maxMessageBytes,
  "grpc.max_send_message_length": maxMessageBytes,
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.keepalive_permit_without_calls": 1,
  // grpc-js would send even calls to loopback through the proxy that http_proxy names. A way to a
  // controller or backend through an HTTP proxy is nothing that is promised here.
  "grpc.enable_http_proxy": 0,
} satisfies ClientOptions;

const serializer =
  <D extends DescMessage>(schema: D) =>
  (message: MessageShape<D>): Buffer => {
    const bytes = toBinary(schema, message);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };

const deserializer =
  <D extends DescMessage>(schema: D) =>
  (bytes: Buffer): MessageShape<D> =>
    fromBinary(schema, bytes);

/** The @grpc/grpc-js definition of one generated method. */
export function grpcMethod<M extends DescMethod>(
  method: M,
): MethodDefinition<MessageShape<M["input"]>, MessageShape<M["output"]>> {
  const kind = method.methodKind;
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: kind === "client_streaming" || kind === "bidi_streaming",
    responseStream: kind === "server_streaming" || kind === "bidi_streaming",
    requestSerialize: serializer(method.input),
    requestDeserialize: deserializer(method.input),
    responseSerialize: serializer(method.output),
    responseDeserialize: deserializer(method.output),
    originalName: method.localName,
  } as unknown as MethodDefinition<MessageShape<M["input"]>, MessageShape<M["output"]>>;
}

/** The @grpc/grpc-js definition of a generated service, for `Server.addService`. */
export function grpcService(service: DescService): ServiceDefinition {
  return Object.fromEntries(service.methods.map((m) => [m.localName, grpcMethod(m)]));
}
