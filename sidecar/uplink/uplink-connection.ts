import { create, fromBinary } from "@bufbuild/protobuf";
import {
  type ChannelCredentials,
  Client,
  type ClientDuplexStream,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import {
  type ConnectRequest,
  ConnectRequestSchema,
  type ConnectResponse,
  ConnectResponseSchema,
  type Hello,
  SampleStream,
  type Welcome,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import { grpcChannelOptions, grpcMethod } from "../../runtime/grpc-service.ts";
import { connectRequestBytes, type UpMessage } from "./connect-request-bytes.ts";
import type { Spool } from "./spool.ts";

export interface ConnectionOptions {
  readonly address: string;
  readonly credentials: ChannelCredentials;
  readonly token: string;
  readonly hello: Hello;
  readonly spool: Spool;
  /** Aborts the connection at once. */
  readonly signal: AbortSignal;
  readonly onWelcome: (welcome: Welcome) => void;
  /** Everything down but welcomes and acks. */
  readonly onCommand: (message: ConnectResponse["message"]) => void;
  readonly onAcked: () => void;
  /** Records sent and not acknowledged, at most; default 8 MiB. */
  readonly windowBytes?: number;
  readonly welcomeTimeoutMs?: number;
}

/** Why a connection ended. */
export interface ConnectionEnd {
  readonly wasWelcomed: boolean;
  readonly reason: string;
  /** The controller refused this sidecar: trying again at once is of no use. */
  readonly isRefusal: boolean;
}

/** One stream to the controller, from the hello to its end. */
export interface UplinkConnection {
  readonly ended: Promise<ConnectionEnd>;
  /** Sends a report if the stream has been welcomed. */
  send(message: ConnectRequest["message"]): void;
  /** There may be new records in the spool. */
  wake(): void;
}

/**
 * Sends a hello, waits for the welcome, then sends the spool from the first unacknowledged record
 * on. The loop waits for: new records (`wake`), room in the window (an ack) and room in the
 * transport (drain); each of them, and the end of the stream, goes through one wake-up.
 */
export function openUplinkConnection(options: ConnectionOptions): UplinkConnection {
  const { spool, signal } = options;
  const windowBytes = options.windowBytes ?? 8 * 1024 ** 2;
  const client = new Client(options.address, options.credentials, {
    ...grpcChannelOptions,
    // A fresh connection each time: the delay between attempts is ours, not the channel's.
    "grpc.use_local_subchannel_pool": 1,
  });
  const stream = openStream(client, options.token);
  const inFlight: { readonly seq: number; readonly bytes: number }[] = [];
  let inFlightBytes = 0;
  let isWelcomed = false;
  let isEnded = false;
  let isBlocked = false;
  let wakeUp: (() => void) | undefined;
  let finish: (end: ConnectionEnd) => void;
  const ended = new Promise<ConnectionEnd>((resolve) => {
    finish = resolve;
  });
  const wake = (): void => wakeUp?.();
  const nextWake = (): Promise<void> =>
    new Promise((resolve) => {
      wakeUp = resolve;
    });
  const end = (reason: string, isRefusal = false): void => {
    if (isEnded) return;
    isEnded = true;
    clearTimeout(welcomeTimer);
    signal.removeEventListener("abort", onAbort);
    stream.cancel();
    client.close();
    wake();
    finish({ wasWelcomed: isWelcomed, reason, isRefusal });
  };
  const onAbort = (): void => end("closed");
  const welcomeTimer = setTimeout(
    () => end("no welcome from the controller"),
    options.welcomeTimeoutMs ?? 10_000,
  );
  const write = (message: UpMessage): void => {
    if (!stream.write(message)) isBlocked = true;
  };
  const onAck = (seq: number): void => {
    while (inFlight.length > 0 && (inFlight[0]?.seq ?? 0) <= seq)
      inFlightBytes -= inFlight.shift()?.bytes ?? 0;
    spool.acknowledge(seq);
    options.onAcked();
    wake();
  };

  /** Consumes the spool, produces records on the stream. */
  const sendRecords = async (): Promise<void> => {
    let nextSeq = spool.ackedSeq + 1;
    while (!isEnded) {
      if (nextSeq > spool.lastSeq) {
        await nextWake();
        continue;
      }
      const frames = await spool.readFrom(nextSeq);
      for (const { seq, payload } of frames) {
        while (!isEnded && (isBlocked || (inFlightBytes > 0 && inFlightBytes >= windowBytes)))
          await nextWake();
        if (isEnded) return;
        inFlight.push({ seq, bytes: payload.length });
        inFlightBytes += payload.length;
        write({ recordBytes: payload });
        nextSeq = seq + 1;
      }
      // The rest of the last segment could not be read: there is nothing to send from it.
      if (frames.length === 0) nextSeq = spool.lastSeq + 1;
    }
  };

  stream.on("drain", () => {
    isBlocked = false;
    wake();
  });
  stream.on("data", ({ message }: ConnectResponse) => {
    if (isEnded) return;
    if (message.case === "welcome") {
      clearTimeout(welcomeTimer);
      isWelcomed = true;
      options.onWelcome(message.value);
      sendRecords().catch((error: Error) => end(`the spool cannot be read: ${error.message}`));
    } else if (message.case === "ack") onAck(Number(message.value.seq));
    else options.onCommand(message);
  });
  stream.on("error", (error: ServiceError) => {
    const isRefusal = [
      status.UNAUTHENTICATED,
      status.PERMISSION_DENIED,
      status.FAILED_PRECONDITION,
      status.UNIMPLEMENTED,
    ].includes(error.code);
    end(`${status[error.code] ?? error.code}: ${error.details}`, isRefusal);
  });
  stream.on("end", () => end("the controller closed the stream"));
  signal.addEventListener("abort", onAbort, { once: true });
  if (signal.aborted) onAbort();
  else write(create(ConnectRequestSchema, { message: { case: "hello", value: options.hello } }));

  return {
    ended,
    wake,
    send: (message) => {
      if (isWelcomed && !isEnded) write(create(ConnectRequestSchema, { message }));
    },
  };
}

function openStream(client: Client, token: string): ClientDuplexStream<UpMessage, ConnectResponse> {
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${token}`);
  return client.makeBidiStreamRequest(
    grpcMethod(SampleStream.method.connect).path,
    connectRequestBytes,
    (bytes: Buffer) => fromBinary(ConnectResponseSchema, bytes),
    metadata,
    {},
  );
}
