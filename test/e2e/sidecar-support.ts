import { openLog } from "../../runtime/log.ts";
import type { FinishedCall } from "../../sidecar/capture/finished-call.ts";
import type { RecordSink, SidecarEvent } from "../../sidecar/capture/record-sink.ts";
import { sidecarConfigSchema } from "../../sidecar/sidecar-config.ts";
import { Sidecar } from "../../sidecar/start-sidecar.ts";

export interface TestSidecar {
  readonly sidecar: Sidecar;
  /** `http://127.0.0.1:PORT`. */
  readonly url: string;
  readonly calls: FinishedCall[];
  /** Resolves with the first `count` records, as soon as there are so many. */
  recorded(count: number): Promise<FinishedCall[]>;
  close(): Promise<void>;
}

/** A real sidecar on loopback whose records stay in memory. */
export async function startTestSidecar(
  engineUrls: readonly string[],
  overrides: Readonly<Record<string, unknown>> = {},
): Promise<TestSidecar> {
  const { engines, ...rest } = overrides as { engines?: Record<string, unknown> };
  const config = sidecarConfigSchema.parse({
    port: 0,
    logLevel: "silent",
    engines: {
      urls: engineUrls.map((url) => `${url}/v1`),
      healthIntervalMs: 50,
      ...engines,
    },
    ...rest,
  });
  const memory = createMemorySink();
  const sidecar = await Sidecar.start({
    config,
    version: "test",
    log: openLog({ level: config.logLevel, process: "sidecar" }),
    sink: memory.sink,
  });
  await sidecar.probed(10_000);
  return {
    sidecar,
    url: sidecar.url,
    calls: memory.calls,
    recorded: (count) => memory.recorded(count),
    close: () => sidecar.close(1_000),
  };
}

export function createMemorySink(): {
  readonly sink: RecordSink;
  readonly calls: FinishedCall[];
  readonly events: SidecarEvent[];
  recorded(count: number): Promise<FinishedCall[]>;
} {
  const calls: FinishedCall[] = [];
  const events: SidecarEvent[] = [];
  const waiting = new Set<() => void>();
  return {
    calls,
    events,
    sink: {
      record: (call) => {
        calls.push(call);
        for (const check of waiting) check();
        return true;
      },
      event: (event) => {
        events.push(event);
        return true;
      },
      isUnderPressure: false,
      isHealthy: true,
      close: async () => undefined,
    },
    recorded: (count) =>
      new Promise((resolve) => {
        const check = (): void => {
          if (calls.length < count) return;
          waiting.delete(check);
          resolve(calls.slice(0, count));
        };
        waiting.add(check);
        check();
      }),
  };
}

/** Ids and logprobs as plain arrays, and nothing that differs from run to run. */
export function comparable(call: FinishedCall): unknown {
  return {
    dialect: call.dialect,
    promptIds: plain(call.promptIds),
    choices: call.choices.map(({ callId: _callId, ...choice }) => ({
      ...choice,
      responseIds: plain(choice.responseIds),
      logprobs: plain(choice.logprobs),
    })),
    usage: call.usage,
    delivered: call.delivered,
    httpStatus: call.httpStatus,
    errorReason: call.errorReason,
  };
}

function plain(values: Int32Array | Float32Array | null): number[] | null {
  return values === null ? null : [...values];
}

/**
 * Resolves when `condition` holds; looks again on each turn of the event loop. The limit only ends a
 * test that hangs: what is waited for may be in another process, on a machine with much else to do.
 */
export async function until(condition: () => boolean, timeoutMs = 60_000): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!condition()) {
    if (performance.now() > deadline)
      throw new Error(`not within ${timeoutMs} ms: ${String(condition)}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}
