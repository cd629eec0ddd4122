import type { DescMethod, MessageShape } from "@bufbuild/protobuf";
import {
  type ChannelCredentials,
  Client,
  type ClientDuplexStream,
  type Metadata,
  Metadata as MetadataClass,
} from "@grpc/grpc-js";
import { grpcChannelOptions, grpcMethod } from "./grpc-service.ts";

type In<M extends DescMethod> = MessageShape<M["input"]>;
type Out<M extends DescMethod> = MessageShape<M["output"]>;

/** A channel with typed calls over generated methods. */
export interface GrpcClient {
  unary<M extends DescMethod>(method: M, request: In<M>, options?: CallOptions): Promise<Out<M>>;
  bidi<M extends DescMethod>(method: M, metadata?: Metadata): ClientDuplexStream<In<M>, Out<M>>;
  close(): void;
}

export interface CallOptions {
  readonly signal?: AbortSignal;
  readonly timeoutMs?: number;
  readonly metadata?: Metadata;
}

export function openGrpcClient(address: string, credentials: ChannelCredentials): GrpcClient {
  const client = new Client(address, credentials, grpcChannelOptions);
  return {
    unary: (method, request, options = {}) =>
      new Promise((resolve, reject) => {
        const { signal } = options;
        if (signal?.aborted) {
          reject(signal.reason as Error);
          return;
        }
        const definition = grpcMethod(method);
        const call = client.makeUnaryRequest(
          definition.path,
          definition.requestSerialize,
          definition.responseDeserialize,
          request,
          options.metadata ?? new MetadataClass(),
          options.timeoutMs === undefined ? {} : { deadline: Date.now() + options.timeoutMs },
          (error, response) => {
            signal?.removeEventListener("abort", cancel);
            if (error !== null) reject(error);
            else resolve(response as Out<typeof method>);
          },
        );
        const cancel = (): void => call.cancel();
        signal?.addEventListener("abort", cancel, { once: true });
      }),
    bidi: (method, metadata) => {
      const definition = grpcMethod(method);
      return client.makeBidiStreamRequest(
        definition.path,
        definition.requestSerialize,
        definition.responseDeserialize,
        metadata ?? new MetadataClass(),
        {},
      ) as ClientDuplexStream<In<typeof method>, Out<typeof method>>;
    },
    close: () => client.close(),
  };
}
