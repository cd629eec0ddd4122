import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { DecodeSession } from "../compute/compute.ts";
import { type RandomStream, randomStream } from "./random-stream.ts";
import { type SampledChoice, type SamplingParameters, sampleToken } from "./sample-token.ts";
import { createSlotCache, type SlotCache } from "./slot-cache.ts";

export interface SampledToken extends SampledChoice {
  /** The policy version that sampled it. */
  readonly version: number;
}

export interface SequenceRequest {
  /** At least one id. */
  readonly promptIds: Int32Array;
  readonly sampling: SamplingParameters;
  readonly maxTokens: number;
  /** The request's own seed and choice; without a seed see `PolicyEngine`. */
  readonly seed?: number | undefined;
  readonly choiceIndex: number;
  /** The ids at which `onToken` ends the sequence, for an engine that must say so beforehand. */
  readonly endIds?: readonly number[];
  /** Called for each token as it is sampled; `true` ends the sequence. */
  readonly onToken: (token: SampledToken) => boolean;
  /** Called once, when the sequence gets its slot. */
  readonly onStart?: (cachedTokenCount: number) => void;
}

/** What the policy's HTTP API asks of an engine; another one samples on a remote server. */
export type ServingEngine = Pick<
  PolicyEngine,
  "version" | "maxLength" | "waitingCount" | "hasRoomFor" | "generate"
>;

export interface PolicyEngineOptions {
  readonly session: DecodeSession;
  readonly slots: number;
  readonly maxLength: number;
  readonly version: number;
  readonly seed: number;
  /** Sequences that may wait for a slot; more are refused. */
  readonly maxWaiting?: number;
  /** Prompt tokens, padding included, that one step computes besides decoding. */
  readonly prefillTokensPerStep?: number;
}

interface Sequence {
  readonly request: SequenceRequest;
  readonly random: RandomStream;
  /** Prompt and sampled ids; the first `length` are in use. */
  readonly ids: Int32Array;
  length: number;
  slot: number;
  isEnded: boolean;
  readonly settle: (error: unknown) => void;
}

const closedError = (): OutriggerError =>
  new OutriggerError("engine-closed", "the policy server is shutting down", {
    origin: "engine",
    retryable: true,
  });

/**
 * Continuous batching over a decode session.
 *
 * The loop consumes waiting sequences and produces tokens. Each step runs at most one prefill batch
 * and one decode batch; between steps it takes and frees slots and publishes weights. It waits only
 * when nothing runs, and a new sequence, a publication or `close` unblocks it. When `maxWaiting`
 * sequences wait, more are refused with `queue-full`.
 *
 * A publication forgets every cached prefix and computes running sequences anew, so each token's
 * logprob is exactly that of its version in its whole context.
 *
 * Without a request seed, the n-th sampling of a prompt in a policy version has its own stream:
 * the same run draws the same tokens in whatever order its requests arrive.
 */
export class PolicyEngine {
  readonly #session: DecodeSession;
  readonly #slots: SlotCache;
  readonly #options: Required<PolicyEngineOptions>;
  readonly #waiting: Sequence[] = [];
  readonly #running = new Set<Sequence>();
  readonly #publications: (() => Promise<void>)[] = [];
  readonly #occurrences = new Map<string, number>();
  readonly #loop: Promise<void>;
  #version: number;
  #isClosed = false;
  #wake: () => void = () => undefined;

  constructor(options: PolicyEngineOptions) {
    this.#options = { maxWaiting: 1024, prefillTokensPerStep: 2048, ...options };
    this.#session = options.session;
    this.#slots = createSlotCache(options.slots);
    this.#version = options.version;
    this.#loop = this.#run();
  }

  get version(): number {
    return this.#version;
  }

  get maxLength(): number {
    return this.#options.maxLength;
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  get runningCount(): number {
    return this.#running.size;
  }

  /** Whether `count` more sequences would be taken. */
  hasRoomFor(count: number): boolean {
    return this.#waiting.length + count <= this.#options.maxWaiting + this.#slots.freeCount;
  }

  /**
   * Samples until `onToken` or `maxTokens` ends the sequence. Aborting frees its slot before the
   * next step and rejects with the signal's reason.
   */
  generate(request: SequenceRequest, signal?: AbortSignal): Promise<void> {
    if (this.#isClosed) return Promise.reject(closedError());
    if (signal?.aborted === true) return Promise.reject(signal.reason as Error);
    if (!this.hasRoomFor(1)) {
      return Promise.reject(
        new OutriggerError("queue-full", `${this.#waiting.length} requests are waiting already`, {
          origin: "engine",
          hint: "Send fewer requests at once, or give the policy server more slots.",
          retryable: true,
        }),
      );
    }
    const { promptIds, maxTokens } = request;
    if (promptIds.length === 0 || promptIds.length + maxTokens > this.#options.maxLength) {
      return Promise.reject(
        new RangeError(
          `${promptIds.length} + ${maxTokens} tokens do not fit in ${this.#options.maxLength}`,
        ),
      );
    }
    return new Promise((resolve, reject) => {
      const ids = new Int32Array(promptIds.length + maxTokens);
      ids.set(promptIds);
      const onAbort = (): void => this.#end(sequence, signal?.reason);
      const sequence: Sequence = {
        request,
        random: this.#streamFor(request),
        ids,
        length: promptIds.length,
        slot: -1,
        isEnded: false,
        settle: (error) => {
          signal?.removeEventListener("abort", onAbort);
          if (error === undefined) resolve();
          else reject(error as Error);
        },
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiting.push(sequence);
      this.#wake();
    });
  }

  /**
   * Runs `change` between two steps, while nothing decodes; when it gives a version, sampling goes
   * on with it. Rejects with what `change` throws; cached prefixes are forgotten either way.
   */
  publish(change: () => Promise<number>): Promise<number> {
    if (this.#isClosed) return Promise.reject(closedError());
    return new Promise((resolve, reject) => {
      this.#publications.push(async () => {
        try {
          this.#version = await change();
          this.#occurrences.clear();
          resolve(this.#version);
        } catch (error) {
          reject(error as Error);
        } finally {
          this.#forgetCaches();
        }
      });
      this.#wake();
    });
  }

  /** Lets running and waiting sequences finish. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#wake();
    await this.#loop;
  }

  /** Ends every sequence now. */
  async destroy(reason: unknown = closedError()): Promise<void> {
    this.#isClosed = true;
    for (const sequence of [...this.#waiting, ...this.#running]) this.#end(sequence, reason);
    await this.close();
  }

  async #run(): Promise<void> {
    for (;;) {
      for (const publication of this.#publications.splice(0)) await publication();
      this.#admit();
      if (this.#running.size === 0) {
        if (this.#isClosed && this.#waiting.length === 0 && this.#publications.length === 0) break;
        if (this.#waiting.length === 0 && this.#publications.length === 0) await this.#wakeUp();
        continue;
      }
      try {
        await this.#step();
      } catch (error) {
        for (const sequence of this.#running) this.#end(sequence, error);
        this.#forgetCaches();
      }
      // Lets sockets be read and written although the computation may not leave the main thread.
      await new Promise(setImmediate);
    }
    this.#session.close();
  }

  #wakeUp(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = () => {
        this.#wake = () => undefined;
        resolve();
      };
    });
  }

  #admit(): void {
    while (this.#waiting.length > 0) {
      const sequence = this.#waiting[0] as Sequence;
      const taken = this.#slots.take(sequence.ids.subarray(0, sequence.length));
      if (taken === undefined) return;
      this.#waiting.shift();
      sequence.slot = taken.slot;
      this.#session.truncate(taken.slot, taken.keep);
      this.#running.add(sequence);
      sequence.request.onStart?.(taken.keep);
    }
  }

  async #step(): Promise<void> {
    const batches = this.#planStep();
    for (const batch of batches) {
      const live = batch.filter((item) => !item.sequence.isEnded);
      if (live.length === 0) continue;
      const logits = await this.#session.extend(
        live.map(({ sequence, tokenIds }) => ({ slot: sequence.slot, tokenIds })),
      );
      live.forEach(({ sequence }, i) => this.#afterExtend(sequence, logits[i] as Float32Array));
    }
    for (const sequence of this.#running) if (sequence.isEnded) this.#release(sequence);
  }

  /** One batch of long items within the padded budget, one of single tokens. */
  #planStep(): { sequence: Sequence; tokenIds: Int32Array }[][] {
    const prefill: { sequence: Sequence; tokenIds: Int32Array }[] = [];
    const decode: { sequence: Sequence; tokenIds: Int32Array }[] = [];
    const budget = this.#options.prefillTokensPerStep;
    let widest = 0;
    for (const sequence of this.#running) {
      const start = this.#session.lengthOf(sequence.slot);
      const pending = sequence.length - start;
      if (pending === 1) {
        decode.push({ sequence, tokenIds: sequence.ids.subarray(start, sequence.length) });
        continue;
      }
      const width = Math.min(pending, budget);
      const padded = Math.max(widest, width) * (prefill.length + 1);
      if (prefill.length > 0 && padded > budget) continue;
      widest = Math.max(widest, width);
      prefill.push({ sequence, tokenIds: sequence.ids.subarray(start, start + width) });
    }
    return [prefill, decode];
  }

  #afterExtend(sequence: Sequence, logits: Float32Array): void {
    const isWhole = this.#session.lengthOf(sequence.slot) === sequence.length;
    if (sequence.isEnded || !isWhole) return;
    try {
      const choice = sampleToken(logits, sequence.request.sampling, sequence.random);
      sequence.ids[sequence.length++] = choice.id;
      const isStopped = sequence.request.onToken({ ...choice, version: this.#version });
      if (isStopped || sequence.length === sequence.ids.length) this.#end(sequence, undefined);
    } catch (error) {
      this.#end(sequence, error);
    }
  }

  /** Settles a sequence; its slot is freed by the loop, which may be using it right now. */
  #end(sequence: Sequence, error: unknown): void {
    if (sequence.isEnded) return;
    sequence.isEnded = true;
    const waitingAt = this.#waiting.indexOf(sequence);
    if (waitingAt >= 0) this.#waiting.splice(waitingAt, 1);
    sequence.settle(error);
    this.#wake();
  }

  #release(sequence: Sequence): void {
    this.#running.delete(sequence);
    const cached = Math.min(this.#session.lengthOf(sequence.slot), sequence.length);
    this.#slots.give(sequence.slot, sequence.ids.slice(0, cached));
  }

  #forgetCaches(): void {
    for (const slot of this.#slots.invalidate()) this.#session.truncate(slot, 0);
    for (const { slot } of this.#running) this.#session.truncate(slot, 0);
  }

  #streamFor({ seed, choiceIndex, promptIds }: SequenceRequest): RandomStream {
    if (seed !== undefined) return randomStream(this.#options.seed, "request", seed, choiceIndex);
    const prompt = new Uint8Array(promptIds.slice().buffer);
    const key = `${randomStream(prompt)()}-${promptIds.length}`;
    const occurrence = this.#occurrences.get(key) ?? 0;
    // Bounded: a policy version that lives very long starts to count again.
    if (this.#occurrences.size > 200_000) this.#occurrences.clear();
    this.#occurrences.set(key, occurrence + 1);
    return randomStream(this.#options.seed, this.#version, occurrence, prompt);
  }
}
