import type { Logger } from "../../runtime/log.ts";
import { sleep } from "../../runtime/sleep.ts";
import type { EngineProfile } from "../dialects/dialect.ts";
import { askEngine } from "./ask-engine.ts";
import { chooseEngine } from "./choose-engine.ts";
import type { CanaryResult, Engine, EngineEndpoint } from "./engine.ts";
import { type EnginePoolOptions, openEnginePool } from "./engine-pool.ts";

export interface EnginePolicy {
  readonly version: number;
  readonly endpoints: readonly EngineEndpoint[];
}

export interface EngineSetOptions extends EnginePoolOptions {
  readonly kind: EngineProfile["kind"];
  /** How often an engine that does not answer is asked again. */
  readonly healthIntervalMs: number;
  /**
   * Asks an engine, through the gate, for proof of ids and logprobs; one that has given it before
   * only whether that still holds.
   */
  readonly probe: (engine: Engine, signal: AbortSignal) => Promise<CanaryResult>;
  readonly log: Logger;
  readonly onChange: () => void;
}

/**
 * The engines of the current policy: choice, health, canaries. An update replaces the set at once,
 * so that no later call can be sent to an endpoint, or counted as a version, of before; pools of
 * engines that stay are kept, the others close when their last call has ended.
 * Its loop asks unhealthy engines for their model list every `healthIntervalMs` until they answer.
 */
export class EngineSet {
  readonly #options: EngineSetOptions;
  readonly #abort = new AbortController();
  /** URLs of engines that are being asked again. */
  readonly #rechecking = new Set<string>();
  #engines: Engine[] = [];
  #version = 0;
  #healthTimer: NodeJS.Timeout | undefined;
  readonly #checking = new Set<Engine>();

  constructor(options: EngineSetOptions) {
    this.#options = options;
  }

  get engines(): readonly Engine[] {
    return this.#engines;
  }

  get policyVersion(): number {
    return this.#version;
  }

  update(policy: EnginePolicy): void {
    if (this.#abort.signal.aborted) return;
    const before = {
      version: this.#version,
      engines: new Map(this.#engines.map((engine) => [engine.url, engine])),
    };
    this.#version = policy.version;
    this.#engines = policy.endpoints.map((endpoint) =>
      this.#adopt(endpoint, policy.version, before.engines),
    );
    for (const gone of before.engines.values()) void gone.pool.close().catch(() => undefined);
    for (const engine of this.#engines) {
      if (engine.canary === undefined) engine.firstCanary = this.#startCanary(engine);
      else if (engine.canary.isConclusive && policy.version !== before.version)
        void this.#recheck(engine.url);
    }
    this.#options.onChange();
  }

  choose(rolloutId: string, excluded: ReadonlySet<string>): Engine | undefined {
    return chooseEngine(this.#engines, rolloutId, excluded);
  }

  /** A connection to the engine failed: others are preferred until it answers again. */
  reportUnreachable(engine: Engine): void {
    if (!engine.isHealthy || this.#abort.signal.aborted) return;
    engine.isHealthy = false;
    this.#options.log.warn({ engine: engine.url }, "engine unreachable");
    this.#healthTimer ??= setInterval(() => this.#checkUnhealthy(), this.#options.healthIntervalMs);
    this.#healthTimer.unref();
    this.#options.onChange();
  }

  reportReachable(engine: Engine): void {
    if (engine.isHealthy) return;
    engine.isHealthy = true;
    this.#options.log.info({ engine: engine.url }, "engine reachable again");
    this.#options.onChange();
  }

  get hasHealthy(): boolean {
    return this.#engines.some((engine) => engine.isHealthy);
  }

  get hasProbedAll(): boolean {
    return this.#engines.every((engine) => engine.canary?.isConclusive === true);
  }

  get isProbing(): boolean {
    return this.#engines.some((engine) => engine.canary === undefined);
  }

  /** Resolves when each engine has had its first canary, or after `waitMs`. */
  async probed(waitMs: number): Promise<void> {
    const waited = new AbortController();
    const first = this.#engines.map((engine) => engine.firstCanary);
    await Promise.race([Promise.all(first), sleep(waitMs, waited.signal)]);
    waited.abort();
  }

  /** Closes after the running calls; `destroy` does not wait. */
  async close(): Promise<void> {
    this.#stop();
    await Promise.all(this.#engines.map((engine) => engine.pool.close().catch(() => undefined)));
  }

  async destroy(reason: Error): Promise<void> {
    this.#stop();
    await Promise.all(
      this.#engines.map((engine) => engine.pool.destroy(reason).catch(() => undefined)),
    );
  }

  #stop(): void {
    this.#abort.abort();
    clearInterval(this.#healthTimer);
    this.#healthTimer = undefined;
  }

  #adopt(endpoint: EngineEndpoint, version: number, before: Map<string, Engine>): Engine {
    const url = new URL(endpoint.url);
    const key = url.href.replace(/\/+$/, "");
    const known = before.get(key);
    before.delete(key);
    return {
      url: key,
      basePath: url.pathname.replace(/\/+$/, "").replace(/\/v1$/, ""),
      apiKey: endpoint.apiKey === "" ? undefined : endpoint.apiKey,
      model: endpoint.model === "" ? undefined : endpoint.model,
      cacheSalt: endpoint.cacheSalt === "" ? undefined : endpoint.cacheSalt,
      pool: known?.pool ?? openEnginePool(url.origin, this.#options),
      policyVersion: version,
      inFlight: 0,
      isHealthy: known?.isHealthy ?? true,
      canary: known?.canary,
      firstCanary: known?.firstCanary ?? Promise.resolve(),
      profile: known?.profile ?? { kind: this.#options.kind, streamsIds: true },
    };
  }

  #startCanary(engine: Engine): Promise<void> {
    return new Promise((resolve) => void this.#runCanary(engine, resolve));
  }

  /** Asks until the engine gives a conclusive answer, or leaves the set. */
  async #runCanary(engine: Engine, onFirst: () => void): Promise<void> {
    const { signal } = this.#abort;
    for (;;) {
      const result = await this.#options.probe(engine, signal);
      // The set may have changed meanwhile; the engine of the same URL is the one that was asked.
      const current = this.#engines.find((candidate) => candidate.url === engine.url);
      if (!signal.aborted && current !== undefined) this.#noteCanary(current, result);
      onFirst();
      if (signal.aborted || current === undefined) return;
      if (result.isConclusive) return;
      await sleep(this.#options.healthIntervalMs, signal);
    }
  }

  /**
   * New weights may come with a restarted or another engine behind the same address. Calls go on
   * meanwhile; an engine that is too busy to answer keeps the verdict that it has.
   */
  async #recheck(url: string): Promise<void> {
    if (this.#rechecking.has(url)) return;
    this.#rechecking.add(url);
    const { signal } = this.#abort;
    const find = (): Engine | undefined => this.#engines.find((engine) => engine.url === url);
    for (let engine = find(); engine !== undefined && !signal.aborted; ) {
      const result = await this.#options.probe(engine, signal);
      const current = find();
      if (signal.aborted || current === undefined) break;
      if (result.isConclusive) this.#noteCanary(current, result);
      if (current.policyVersion === engine.policyVersion) break;
      engine = current;
    }
    this.#rechecking.delete(url);
  }

  #noteCanary(engine: Engine, result: CanaryResult): void {
    const { log } = this.#options;
    const isNews = engine.canary?.problem !== result.problem || engine.canary === undefined;
    engine.canary = result;
    if (result.isConclusive) {
      engine.profile = { kind: result.kind ?? engine.profile.kind, streamsIds: result.streamsIds };
    }
    if (result.isUnreachable) this.reportUnreachable(engine);
    else this.reportReachable(engine);
    const facts = { engine: engine.url, streamsIds: result.streamsIds, problem: result.problem };
    if (result.problem === undefined) log[isNews ? "info" : "debug"](facts, "canary passed");
    else if (!result.isConclusive && isNews)
      log.warn(facts, "canary: engine not ready, asking again");
    else if (isNews) log.error(facts, "canary failed: calls are served but not trained on");
    this.#options.onChange();
  }

  #checkUnhealthy(): void {
    const unhealthy = this.#engines.filter((engine) => !engine.isHealthy);
    if (unhealthy.length === 0) {
      clearInterval(this.#healthTimer);
      this.#healthTimer = undefined;
    }
    for (const engine of unhealthy) void this.#checkHealth(engine);
  }

  /** One question at a time: an engine that takes connections and is silent must not get more. */
  async #checkHealth(engine: Engine): Promise<void> {
    if (this.#checking.has(engine)) return;
    this.#checking.add(engine);
    const answer = await askEngine(
      engine,
      { method: "GET", path: `${engine.basePath}/v1/models`, body: null },
      { signal: this.#abort.signal, timeoutMs: healthTimeoutMs },
    );
    this.#checking.delete(engine);
    if (answer.kind === "answer" && answer.status < 500) this.reportReachable(engine);
  }
}

const healthTimeoutMs = 10_000;
