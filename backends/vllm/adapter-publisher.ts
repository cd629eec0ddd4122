import type { PolicyEndpoint } from "../../core/trainer-backend.ts";
import type { Logger } from "../../runtime/log.ts";
import { createSerialQueue } from "../native/compute/serial-queue.ts";
import { decideUnload } from "./decide-unload.ts";
import type { VllmEngine } from "./vllm-engine.ts";

/** One version of the policy as a LoRA adapter. Its name is never given to other weights. */
export interface PublishedAdapter {
  readonly name: string;
  /** Directory of the adapter, the same for the engines. */
  readonly path: string;
  readonly version: number;
}

export interface AdapterPublisherOptions {
  readonly engines: readonly VllmEngine[];
  /** Names that begin so are this run's. */
  readonly prefix: string;
  /** How often engines are looked after. Default 5,000 ms. */
  readonly checkMs?: number;
  /** Told which of this run's adapters some engine still has, once all have been looked after. */
  readonly onLookedAfter?: (loaded: ReadonlySet<string>) => Promise<void>;
  readonly log: Logger;
}

/**
 * Publishes a policy to engines that others run. A version counts once every engine has it and has
 * sampled a token with it. The one before stays for calls that are on their way; older ones are
 * unloaded when no call runs with them. An engine that has restarted gets the present one again.
 */
export interface AdapterPublisher {
  readonly served: PublishedAdapter | undefined;
  publish(
    adapter: PublishedAdapter,
    promptIds: readonly number[],
    signal?: AbortSignal,
  ): Promise<void>;
  endpoints(): PolicyEndpoint[];
  close(): Promise<void>;
}

export function openAdapterPublisher(options: AdapterPublisherOptions): AdapterPublisher {
  const { engines, prefix, log } = options;
  const serial = createSerialQueue();
  let served: PublishedAdapter | undefined;
  let previous: PublishedAdapter | undefined;
  let prompt: readonly number[] = [0];

  /** Gives those that stay. */
  const unloadIdle = async (engine: VllmEngine): Promise<readonly string[]> => {
    const loaded = [...(await engine.adapters()).keys()].filter((name) => name.startsWith(prefix));
    const needed = [served?.name, previous?.name].filter((name) => name !== undefined);
    const busy = await engine.busyAdapters();
    const idle = decideUnload({ loaded, needed, busy });
    for (const name of idle) {
      await engine.unload(name);
      log.info({ engine: engine.url, adapter: name }, "an old policy was unloaded");
    }
    return loaded.filter((name) => !idle.includes(name));
  };

  /** The present adapter is there (again), and what nobody needs is gone. */
  const lookAfter = async (engine: VllmEngine): Promise<readonly string[]> => {
    if (served === undefined) return [];
    if (!(await engine.adapters()).has(served.name)) {
      log.warn({ engine: engine.url, adapter: served.name }, "an engine has lost the policy");
      await engine.load(served.name, served.path);
      await engine.tryAdapter(served.name, prompt);
    }
    return unloadIdle(engine);
  };

  const lookAfterAll = async (): Promise<void> => {
    try {
      const loaded = await Promise.all(engines.map(lookAfter));
      const needed = [served?.name, previous?.name].filter((name) => name !== undefined);
      await options.onLookedAfter?.(new Set([...loaded.flat(), ...needed]));
    } catch (error) {
      log.debug({ err: error }, "an engine could not be looked after");
    }
  };
  const timer = setInterval(() => void serial(lookAfterAll), options.checkMs ?? 5_000);
  timer.unref();

  return {
    get served() {
      return served;
    },
    publish: (adapter, promptIds, signal) =>
      serial(async () => {
        if (served?.name === adapter.name) return;
        await Promise.all(
          engines.map(async (engine) => {
            await engine.load(adapter.name, adapter.path, signal);
            await engine.tryAdapter(adapter.name, promptIds, signal);
          }),
        );
        previous = served;
        served = adapter;
        prompt = promptIds;
        log.info(
          { adapter: adapter.name, version: adapter.version },
          "the engines have the policy",
        );
      }),
    endpoints: () => {
      if (served === undefined) return [];
      const { name, version } = served;
      return engines.map(({ url }) => ({ url, model: name, version, cacheSalt: name }));
    },
    close: async () => {
      clearInterval(timer);
      await Promise.all(engines.map((engine) => engine.close()));
      await serial(async () => undefined);
    },
  };
}
