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

/**
 * One stream to the controller, from the hello to its end. Sends a hello, waits for the welcome,
 * then sends the spool from the first unacknowledged record on.
 *
 * The sending loop waits for: new records (`wake`), room in the window (an ack) and room in the
 * transport (drain); each of them, and the end of the stream, goes through one wake-up.
 */
export class UplinkConnection {
  readonly ended: Promise<ConnectionEnd>;
  readonly #options: ConnectionOptions;
  readonly #client: Client;
  readonly #stream: ClientDuplexStream<UpMessage, ConnectResponse>;
  readonly #welcomeTimer: NodeJS.Timeout;
  readonly #onAbort = (): void => this.#end("closed");
  /** Sent and not acknowledged, oldest first. */
  readonly #inFlight: { readonly seq: number; readonly bytes: number }[] = [];
  #inFlightBytes = 0;
  #isWelcomed = false;
  #isEnded = false;
  #isBlocked = false;
  #wakeUp: (() => void) | undefined;
  #finish: (end: ConnectionEnd) => void = () => {};

  constructor(options: ConnectionOptions) {
    const { address, credentials, token, hello, signal, welcomeTimeoutMs = 10_000 } = options;
    this.#options = options;
    this.ended = new Promise((resolve) => {
      this.#finish = resolve;
    });
    this.#client = new Client(address, credentials, {
      ...grpcChannelOptions,
      // A fresh connection each time: the delay between attempts is ours, not the channel's.
      "grpc.use_local_subchannel_pool": 1,
    });
    this.#stream = openStream(this.#client, token);
    this.#welcomeTimer = setTimeout(
      () => this.#end("no welcome from the controller"),
      welcomeTimeoutMs,
    );
    this.#listen();
    signal.addEventListener("abort", this.#onAbort, { once: true });
    if (signal.aborted) this.#onAbort();
    else this.#write(create(ConnectRequestSchema, { message: { case: "hello", value: hello } }));
  }

  /** Sends a report if the stream has been welcomed. */
  send(message: ConnectRequest["message"]): void {
    if (this.#isWelcomed && !this.#isEnded) this.#write(create(ConnectRequestSchema, { message }));
  }

  /** There may be new records in the spool. */
  wake(): void {
    this.#wakeUp?.();
  }

  #listen(): void {
    this.#stream.on("drain", () => {
      this.#isBlocked = false;
      this.wake();
    });
    this.#stream.on("data", ({ message }: ConnectResponse) => this.#take(message));
    this.#stream.on("error", (error: ServiceError) => {
      const reason = `${status[error.code] ?? error.code}: ${error.details}`;
      this.#end(reason, refusals.has(error.code));
    });
    this.#stream.on("end", () => this.#end("the controller closed the stream"));
  }

  #take(message: ConnectResponse["message"]): void {
    if (this.#isEnded) return;
    if (message.case === "ack") this.#onAck(Number(message.value.seq));
    else if (message.case !== "welcome") this.#options.onCommand(message);
    else {
      clearTimeout(this.#welcomeTimer);
      this.#isWelcomed = true;
      this.#options.onWelcome(message.value);
      this.#sendRecords().catch((error: Error) =>
        this.#end(`the spool cannot be read: ${error.message}`),
      );
    }
  }

  #onAck(seq: number): void {
    while (this.#inFlight.length > 0 && (this.#inFlight[0]?.seq ?? 0) <= seq)
      this.#inFlightBytes -= this.#inFlight.shift()?.bytes ?? 0;
    this.#options.spool.acknowledge(seq);
    this.#options.onAcked();
    this.wake();
  }

  /** Consumes the spool, produces records on the stream. */
  async #sendRecords(): Promise<void> {
    const { spool } = this.#options;
    let nextSeq = spool.ackedSeq + 1;
    while (!this.#isEnded) {
      const { lastSeq } = spool;
      const frames = await spool.readFrom(nextSeq);
      for (const { seq, payload } of frames) {
        while (!this.#isEnded && !this.#hasRoom()) await this.#nextWake();
        if (this.#isEnded) return;
        this.#inFlight.push({ seq, bytes: payload.length });
        this.#inFlightBytes += payload.length;
        this.#write({ recordBytes: payload });
        nextSeq = seq + 1;
      }
      if (frames.length > 0) continue;
      // What was there before the read and was not found is damaged; what came during it was not
      // looked for.
      if (nextSeq <= lastSeq) nextSeq = lastSeq + 1;
      else if (nextSeq > spool.lastSeq && !this.#isEnded) await this.#nextWake();
    }
  }

  /** A record larger than the window goes alone. */
  #hasRoom(): boolean {
    const { windowBytes = 8 * 1024 ** 2 } = this.#options;
    return !this.#isBlocked && (this.#inFlightBytes === 0 || this.#inFlightBytes < windowBytes);
  }

  #nextWake(): Promise<void> {
    return new Promise((resolve) => {
      this.#wakeUp = resolve;
    });
  }

  #write(message: UpMessage): void {
    if (!this.#stream.write(message)) this.#isBlocked = true;
  }

  #end(reason: string, isRefusal = false): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    clearTimeout(this.#welcomeTimer);
    this.#options.signal.removeEventListener("abort", this.#onAbort);
    this.#stream.cancel();
    this.#client.close();
    this.wake();
    this.#finish({ wasWelcomed: this.#isWelcomed, reason, isRefusal });
  }
}

/** Statuses by which a controller says that trying again at once is of no use. */
const refusals: ReadonlySet<status> = new Set([
  status.UNAUTHENTICATED,
  status.PERMISSION_DENIED,
  status.FAILED_PRECONDITION,
  status.UNIMPLEMENTED,
]);

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
