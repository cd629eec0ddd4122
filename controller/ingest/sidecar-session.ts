import { create } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import {
  AckSchema,
  type ConnectResponse,
  ConnectResponseSchema,
  FlushRequestSchema,
  type GateReport,
  type Hello,
  type SidecarReport,
  type Record as SpooledRecord,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { Capability, TokenVerifier } from "../../runtime/capability-token.ts";
import type { ReceivedMessage, SampleStreamCall } from "./sample-stream-service.ts";

/** The version of the stream's protocol that this controller speaks. */
const protocolVersion = 2;

/** Said to a sidecar without a usable token; its operator reads it in the sidecar's log. */
const tokenSource =
  "what the controller's file sidecar-token holds, in OUTRIGGER_SIDECAR_CONTROLLER_TOKEN";

/** What a session tells the ingest; one session is one stream. */
export interface SessionHandlers {
  /** Gives the welcome; the session sends it. */
  onHello(session: SidecarSession, hello: Hello): Promise<ConnectResponse["message"]>;
  /** A promise holds the sidecar back until it resolves. */
  onRecord(
    session: SidecarSession,
    record: SpooledRecord,
    bytes: number,
  ): Promise<void> | undefined;
  onGateReport(session: SidecarSession, report: GateReport): void;
  onSidecarReport(session: SidecarSession, report: SidecarReport): void;
  /** The answer to a `requestFlush` has come. */
  onFlushReport(session: SidecarSession): void;
  onEnd(session: SidecarSession, reason: string): void;
}

/** Why a stream is refused, with its gRPC status. */
interface Refusal {
  readonly code: status;
  readonly details: string;
}

/**
 * One stream from its opening to its end. Messages are taken in order, and the next one only when
 * the last has been taken, so that a slow store holds the sidecar back through the transport.
 */
export class SidecarSession {
  readonly #call: SampleStreamCall;
  readonly #handlers: SessionHandlers;
  #capability: Capability | undefined;
  #hello: Hello | undefined;
  #isEnded = false;
  #ackSeq = 0;
  /**
   * Stored of this spool before the stream began. Never acknowledged as such: a spool that lost its
   * end with its machine gives numbers out again.
   */
  #storedSeq = 0;
  #isAckDue = false;
  /** By flush id: the sequence number to wait for, undefined until the sidecar has said it. */
  readonly #flushes = new Map<string, number | undefined>();

  constructor(call: SampleStreamCall, handlers: SessionHandlers) {
    this.#call = call;
    this.#handlers = handlers;
    // An error event is also how a status is sent; the stream's end is seen by the others.
    call.on("error", () => {});
    call.on("cancelled", () => this.#ended("the connection was lost"));
    call.on("close", () => this.#ended("the stream was closed"));
    call.on("end", () => {
      this.#ended("the sidecar closed the stream");
      call.end();
    });
  }

  /** Known once the hello has come. */
  get hello(): Hello | undefined {
    return this.#hello;
  }

  /** True when the sidecar may speak for this rollout. */
  isAllowed(rolloutId: string): boolean {
    const allowed = this.#capability?.rolloutId;
    return allowed === "*" || allowed === rolloutId;
  }

  async serve(verifier: TokenVerifier): Promise<void> {
    const refusal = await this.#authenticate(verifier);
    if (refusal !== undefined) return this.#refuse(refusal);
    this.#call.on("data", (received: ReceivedMessage) => {
      const wait = this.#take(received);
      if (wait === undefined) return;
      this.#call.pause();
      wait.then(
        () => this.#call.resume(),
        (error: Error) => this.#refuse({ code: status.INTERNAL, details: error.message }),
      );
    });
  }

  send(message: ConnectResponse["message"]): void {
    if (!this.#isEnded) this.#call.write(create(ConnectResponseSchema, { message }));
  }

  /** Up to `seq` is durable; several calls in one turn of the event loop become one message. */
  acknowledge(seq: number): void {
    this.#ackSeq = Math.max(this.#ackSeq, seq);
    if (this.#isAckDue) return;
    this.#isAckDue = true;
    queueMicrotask(() => {
      this.#isAckDue = false;
      const value = create(AckSchema, { seq: BigInt(this.#ackSeq) });
      this.send({ case: "ack", value });
    });
  }

  /** Asks, once per id, how far the sidecar's spool is. */
  requestFlush(flushId: string): void {
    if (this.#flushes.has(flushId)) return;
    this.#flushes.set(flushId, undefined);
    this.send({ case: "flushRequest", value: create(FlushRequestSchema, { flushId }) });
  }

  /** Everything that was spooled when the sidecar answered is durable here. */
  isFlushed(flushId: string): boolean {
    const lastSeq = this.#flushes.get(flushId);
    return lastSeq !== undefined && Math.max(this.#ackSeq, this.#storedSeq) >= lastSeq;
  }

  forgetFlush(flushId: string): void {
    this.#flushes.delete(flushId);
  }

  /** Ends the stream; a sidecar reconnects after it. */
  end(reason: string): void {
    this.#refuse({ code: status.UNAVAILABLE, details: reason });
  }

  async #authenticate(verifier: TokenVerifier): Promise<Refusal | undefined> {
    const header = String(this.#call.metadata.get("authorization")[0] ?? "");
    const token = /^Bearer (\S+)$/.exec(header)?.[1];
    if (token === undefined)
      return {
        code: status.UNAUTHENTICATED,
        details: `a capability token is required: ${tokenSource}`,
      };
    const verdict = await verifier.verify(token);
    if (!verdict.ok)
      return {
        code: status.UNAUTHENTICATED,
        details: `capability token: ${verdict.reason}; needed is ${tokenSource}`,
      };
    if (!verdict.capability.scopes.includes("sidecar"))
      return { code: status.PERMISSION_DENIED, details: "the token lacks the scope sidecar" };
    this.#capability = verdict.capability;
    return undefined;
  }

  #take(received: ReceivedMessage): Promise<void> | undefined {
    if (this.#isEnded) return undefined;
    if (!received.ok) return this.#refuseMessage(`unreadable message: ${received.problem}`);
    const { message, bytes } = received;
    if (this.#hello === undefined) {
      if (message.case !== "hello") return this.#refuseMessage("the first message must be a hello");
      return this.#greet(message.value);
    }
    switch (message.case) {
      case "record":
        return this.#handlers.onRecord(this, message.value, bytes);
      case "gateReport":
        this.#handlers.onGateReport(this, message.value);
        return undefined;
      case "sidecarReport":
        this.#handlers.onSidecarReport(this, message.value);
        return undefined;
      case "flushReport": {
        const { flushId, lastSeq } = message.value;
        if (this.#flushes.has(flushId)) this.#flushes.set(flushId, Number(lastSeq));
        this.#handlers.onFlushReport(this);
        return undefined;
      }
      case "hello":
      case undefined:
        return this.#refuseMessage(`unexpected message: ${message.case ?? "none"}`);
    }
  }

  async #greet(hello: Hello): Promise<void> {
    if (hello.protocolVersion !== protocolVersion) {
      return this.#refuse({
        code: status.FAILED_PRECONDITION,
        details: `this controller speaks protocol version ${protocolVersion}, the sidecar ${hello.protocolVersion}; run the same version of both`,
      });
    }
    if (hello.sidecarId === "" || hello.spoolId === "")
      return this.#refuse({
        code: status.INVALID_ARGUMENT,
        details: "a hello needs a sidecar id and a spool id",
      });
    this.#hello = hello;
    const welcome = await this.#handlers.onHello(this, hello);
    if (welcome.case === "welcome") this.#storedSeq = Number(welcome.value.ackedSeq);
    this.send(welcome);
  }

  #refuseMessage(details: string): undefined {
    this.#refuse({ code: status.INVALID_ARGUMENT, details });
    return undefined;
  }

  #refuse(refusal: Refusal): void {
    if (this.#isEnded) return;
    this.#ended(refusal.details);
    this.#call.emit("error", refusal);
  }

  #ended(reason: string): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    if (this.#hello !== undefined) this.#handlers.onEnd(this, reason);
  }
}
