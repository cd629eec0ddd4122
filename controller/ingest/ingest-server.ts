import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import type { Server } from "@grpc/grpc-js";
import {
  type Binding,
  BindingSchema,
  BindingUpdateSchema,
  type ConnectResponse,
  type GateCommand,
  GateCommandSchema,
  type GateReport,
  type Hello,
  type PolicyUpdate,
  type SidecarReport,
  type Record as SpooledRecord,
  type Welcome,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { TokenVerifier } from "../../runtime/capability-token.ts";
import type { Logger } from "../../runtime/log.ts";
import type { AppendResult, CallStore } from "../store/call-store.ts";
import { type GateView, type PauseProgress, pauseProgress } from "./pause-progress.ts";
import { createRecordBatcher, type RecordBatcher } from "./record-batcher.ts";
import { type SampleStreamCall, sampleStreamService } from "./sample-stream-service.ts";
import { type SessionHandlers, SidecarSession } from "./sidecar-session.ts";
import { type SidecarView, sidecarView } from "./sidecar-view.ts";
import {
  buildPolicyUpdate,
  buildWelcome,
  type CaptureRules,
  type RolloutBinding,
  type ServedPolicy,
} from "./welcome.ts";

export type { SidecarView } from "./sidecar-view.ts";

export interface IngestOptions {
  readonly store: CallStore;
  readonly verifier: TokenVerifier;
  readonly tokenPublicKeyPem: string;
  readonly capture: CaptureRules;
  readonly policy?: ServedPolicy;
  readonly log: Logger;
  /** Called after a commit with what was new in it. */
  readonly onCommitted?: (result: AppendResult) => void;
  /** A batch is committed when it has so many records, … */
  readonly maxBatchRecords?: number;
  /** … or when its oldest record has waited so long. */
  readonly maxBatchDelayMs?: number;
  /** Received and not committed; above it the sidecars are held back. Default 32 MiB. */
  readonly maxQueuedBytes?: number;
  /** A sidecar that is not connected is waited for by a pause for so long. Default 15 s. */
  readonly absenceLimitMs?: number;
  readonly now?: () => number;
}

export interface PauseOptions {
  readonly reason: string;
  /** How long the sidecars hold a call before they answer 429. */
  readonly holdLimitMs: number;
  /** After this, calls in flight that have sent nothing are aborted and re-issued; 0: never. */
  readonly drainLimitMs: number;
  /** How long to wait for every sidecar's report; default no limit. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

export interface PauseResult {
  /** True when every sidecar has reported drained, but for those that stayed away. */
  readonly drained: boolean;
  readonly sidecars: PauseProgress["sidecars"];
}

/** Counts since the start. */
export interface IngestStats {
  readonly records: number;
  /** Replayed ones that the store had already. */
  readonly duplicates: number;
  /** For a rollout that the sidecar's token is not for: not stored. */
  readonly refusedRecords: number;
  readonly commits: number;
}

export interface IngestServer {
  /** Shuts the gate of every sidecar, those that connect later included, and waits for drained. */
  pause(options: PauseOptions): Promise<PauseResult>;
  resume(): void;
  /** To all connected sidecars now, and to later ones in their welcome. */
  publishPolicy(policy: ServedPolicy): void;
  /** The whole list, replacing the last; each sidecar is told those that are for it. */
  publishBindings(bindings: readonly RolloutBinding[]): void;
  sidecars(): readonly SidecarView[];
  stats(): IngestStats;
  /** Resolves with the sidecars when at least `count` are connected; rejects when aborted. */
  waitForSidecars(count: number, signal?: AbortSignal): Promise<readonly SidecarView[]>;
  /** Resolves when everything received so far is committed. */
  flush(): Promise<void>;
  /**
   * Resolves with true when everything that the sidecars had spooled at this moment is committed:
   * the calls of a harness that has exited are then all here. False after `timeoutMs` or an abort.
   */
  settle(options: { readonly timeoutMs: number; readonly signal?: AbortSignal }): Promise<boolean>;
  /** Commits what was received and ends every stream. The gRPC server itself is the caller's. */
  close(): Promise<void>;
}

/** Adds the SampleStream service to a gRPC server that is not bound yet. */
export function serveSampleStream(server: Server, options: IngestOptions): IngestServer {
  const ingest = new SampleStreamIngest(options);
  server.addService(sampleStreamService, {
    connect: (call: SampleStreamCall) => {
      ingest.serve(call).catch((error: Error) => {
        options.log.error({ err: error }, "a sidecar's stream failed");
        call.emit("error", error);
      });
    },
  });
  return ingest;
}

/** A sidecar that has connected since the start. */
interface Sidecar {
  hello: Hello;
  /** Undefined while it is away. */
  session: SidecarSession | undefined;
  lastSeenAtMs: number;
  gateReport: GateReport | undefined;
  report: SidecarReport | undefined;
}

class SampleStreamIngest implements IngestServer {
  readonly #options: IngestOptions;
  readonly #now: () => number;
  readonly #batcher: RecordBatcher;
  readonly #sidecars = new Map<string, Sidecar>();
  readonly #listeners = new Set<() => void>();
  readonly #stats = { records: 0, duplicates: 0, refusedRecords: 0, commits: 0 };
  #gate: GateCommand = create(GateCommandSchema, { commandId: randomUUID() });
  #policy: PolicyUpdate | undefined;
  #bindings: readonly Binding[] = [];
  #isClosed = false;

  constructor(options: IngestOptions) {
    this.#options = options;
    this.#now = options.now ?? Date.now;
    if (options.policy !== undefined) this.#policy = buildPolicyUpdate(options.policy);
    this.#batcher = createRecordBatcher({
      store: options.store,
      log: options.log,
      maxBatchRecords: options.maxBatchRecords ?? 256,
      maxBatchDelayMs: options.maxBatchDelayMs ?? 5,
      maxQueuedBytes: options.maxQueuedBytes ?? 32 * 1024 ** 2,
      onCommitted: (result) => {
        this.#stats.commits += 1;
        this.#stats.duplicates += result.duplicates;
        options.onCommitted?.(result);
      },
    });
  }

  async serve(call: SampleStreamCall): Promise<void> {
    const session = new SidecarSession(call, this.#handlers);
    if (this.#isClosed) session.end("the controller is shutting down");
    else await session.serve(this.#options.verifier);
  }

  async pause(options: PauseOptions): Promise<PauseResult> {
    const { signal } = options;
    signal?.throwIfAborted();
    const command = create(GateCommandSchema, {
      commandId: randomUUID(),
      paused: true,
      reason: options.reason,
      holdLimitMs: options.holdLimitMs,
      drainLimitMs: options.drainLimitMs,
    });
    this.#gate = command;
    this.#broadcast({ case: "gateCommand", value: command });
    const deadlineMs =
      options.timeoutMs === undefined ? undefined : this.#now() + options.timeoutMs;
    for (;;) {
      const progress = this.#pauseProgress(command.commandId);
      const isSuperseded = this.#gate.commandId !== command.commandId;
      const isLate = deadlineMs !== undefined && this.#now() >= deadlineMs;
      if (progress.isSettled || isSuperseded || isLate || this.#isClosed)
        return { drained: progress.isSettled && !isSuperseded, sidecars: progress.sidecars };
      await this.#nextChange(earliest(progress.recheckAtMs, deadlineMs), signal);
    }
  }

  resume(): void {
    this.#gate = create(GateCommandSchema, { commandId: randomUUID() });
    this.#broadcast({ case: "gateCommand", value: this.#gate });
    this.#changed();
  }

  publishPolicy(policy: ServedPolicy): void {
    this.#policy = buildPolicyUpdate(policy);
    this.#broadcast({ case: "policyUpdate", value: this.#policy });
  }

  publishBindings(bindings: readonly RolloutBinding[]): void {
    this.#bindings = bindings.map((binding) => create(BindingSchema, binding));
    for (const { session, hello } of this.#sidecars.values()) {
      const value = create(BindingUpdateSchema, { bindings: this.#bindingsOf(hello.sidecarId) });
      session?.send({ case: "bindingUpdate", value });
    }
  }

  sidecars(): readonly SidecarView[] {
    return [...this.#sidecars.values()].map((sidecar) =>
      sidecarView({ ...sidecar, isConnected: sidecar.session !== undefined }),
    );
  }

  stats(): IngestStats {
    return { ...this.#stats };
  }

  async waitForSidecars(count: number, signal?: AbortSignal): Promise<readonly SidecarView[]> {
    for (;;) {
      signal?.throwIfAborted();
      const connected = this.sidecars().filter((sidecar) => sidecar.connected);
      if (connected.length >= count) return connected;
      await this.#nextChange(undefined, signal);
    }
  }

  flush(): Promise<void> {
    return this.#batcher.flush();
  }

  async settle(options: {
    readonly timeoutMs: number;
    readonly signal?: AbortSignal;
  }): Promise<boolean> {
    const flushId = randomUUID();
    const deadlineMs = this.#now() + options.timeoutMs;
    try {
      for (;;) {
        const open = [...this.#sidecars.values()].filter((sidecar) =>
          this.#isOpen(sidecar, flushId),
        );
        if (open.length === 0) return true;
        const isOver = this.#isClosed || options.signal?.aborted === true;
        if (isOver || this.#now() >= deadlineMs) return false;
        await this.#nextChange(Math.min(deadlineMs, this.#now() + 1_000), undefined);
      }
    } finally {
      for (const { session } of this.#sidecars.values()) session?.forgetFlush(flushId);
    }
  }

  /** A sidecar whose spool may hold more; one that stays away has nothing that could be waited for. */
  #isOpen({ session, lastSeenAtMs }: Sidecar, flushId: string): boolean {
    if (session === undefined) {
      return this.#now() - lastSeenAtMs < (this.#options.absenceLimitMs ?? 15_000);
    }
    session.requestFlush(flushId);
    return !session.isFlushed(flushId);
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    await this.#batcher.close();
    for (const { session } of this.#sidecars.values())
      session?.end("the controller is shutting down");
    this.#changed();
  }

  readonly #handlers: SessionHandlers = {
    onHello: async (session, hello) => {
      const ackedSeq = await this.#options.store.ackedSeq(hello.spoolId);
      const known = this.#sidecars.get(hello.sidecarId);
      known?.session?.end("the sidecar has connected again");
      this.#sidecars.set(hello.sidecarId, {
        hello,
        session,
        lastSeenAtMs: this.#now(),
        gateReport: undefined,
        report: known?.report,
      });
      this.#options.log.info({ sidecarId: hello.sidecarId, ackedSeq }, "sidecar connected");
      this.#changed();
      return { case: "welcome", value: this.#welcome(hello.sidecarId, ackedSeq) };
    },
    onRecord: (session, record, bytes) => this.#onRecord(session, record, bytes),
    onGateReport: (session, report) => {
      const sidecar = this.#sidecarOf(session);
      if (sidecar !== undefined) sidecar.gateReport = report;
      this.#changed();
    },
    onSidecarReport: (session, report) => {
      const sidecar = this.#sidecarOf(session);
      if (sidecar !== undefined) sidecar.report = report;
    },
    onFlushReport: () => this.#changed(),
    onEnd: (session, reason) => {
      const sidecar = this.#sidecarOf(session);
      if (sidecar === undefined) return;
      sidecar.session = undefined;
      sidecar.lastSeenAtMs = this.#now();
      const { sidecarId } = sidecar.hello;
      this.#options.log.info({ sidecarId, reason }, "sidecar disconnected");
      this.#changed();
    },
  };

  #onRecord(
    session: SidecarSession,
    record: SpooledRecord,
    bytes: number,
  ): Promise<void> | undefined {
    const seq = Number(record.seq);
    const rolloutId = record.body.value?.rolloutId ?? "";
    if (!session.isAllowed(rolloutId)) {
      this.#stats.refusedRecords += 1;
      this.#options.log.error(
        { sidecarId: session.hello?.sidecarId, rolloutId },
        "a sidecar sent a record of a rollout that its token is not for",
      );
      // Taken as done once what came before it is: it would come again otherwise.
      record.body = { case: undefined };
    } else this.#stats.records += 1;
    this.#batcher.add({
      spoolId: session.hello?.spoolId ?? "",
      record,
      bytes,
      onDurable: () => {
        session.acknowledge(seq);
        if (this.#listeners.size > 0) this.#changed();
      },
    });
    return this.#batcher.room();
  }

  #welcome(sidecarId: string, ackedSeq: number): Welcome {
    const { capture, tokenPublicKeyPem, store } = this.#options;
    return buildWelcome({
      ackedSeq,
      capture,
      policy: this.#policy,
      gate: this.#gate,
      tokenPublicKeyPem,
      bindings: this.#bindingsOf(sidecarId),
      storeId: store.storeId,
    });
  }

  #bindingsOf(sidecarId: string): Binding[] {
    return this.#bindings.filter((binding) => binding.sidecarId === sidecarId);
  }

  /** The sidecar whose current stream this is. */
  #sidecarOf(session: SidecarSession): Sidecar | undefined {
    const sidecar = this.#sidecars.get(session.hello?.sidecarId ?? "");
    return sidecar?.session === session ? sidecar : undefined;
  }

  #broadcast(message: ConnectResponse["message"]): void {
    for (const { session } of this.#sidecars.values()) session?.send(message);
  }

  #pauseProgress(commandId: string): PauseProgress {
    const views = [...this.#sidecars.values()].map(
      (sidecar): GateView => ({
        sidecarId: sidecar.hello.sidecarId,
        connected: sidecar.session !== undefined,
        lastSeenAtMs: sidecar.lastSeenAtMs,
        reportedCommandId: sidecar.gateReport?.commandId,
        drained: sidecar.gateReport?.drained ?? false,
      }),
    );
    return pauseProgress(views, commandId, this.#now(), this.#options.absenceLimitMs ?? 15_000);
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }

  /** Resolves at the next change of a sidecar or at `atMs`; rejects when aborted. */
  #nextChange(atMs: number | undefined, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const settle = (finish: () => void): void => {
        clearTimeout(timer);
        this.#listeners.delete(onChange);
        signal?.removeEventListener("abort", onAbort);
        finish();
      };
      const onChange = (): void => settle(resolve);
      const onAbort = (): void => settle(() => reject(signal?.reason as Error));
      const timer =
        atMs === undefined ? undefined : setTimeout(onChange, Math.max(1, atMs - this.#now()));
      this.#listeners.add(onChange);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }
}

function earliest(a: number | undefined, b: number | undefined): number | undefined {
  return a === undefined ? b : b === undefined ? a : Math.min(a, b);
}
