import type { AglModel, AglPort } from "./agl-port.ts";

export interface GatewayState {
  readonly paused: boolean;
  readonly retry_after_seconds: number;
  readonly reason: string | null;
  /** Calls that may still be at an engine; 0 while paused only when every sidecar has said so. */
  readonly inflight: number;
}

export interface AglGateway {
  /** Idempotent: a pause during a pause changes only what callers are told. */
  pause(retryAfterSeconds: number, reason: string | null): Promise<GatewayState>;
  resume(): Promise<GatewayState>;
  state(): GatewayState;
  models(): readonly AglModel[];
  registerModels(models: readonly AglModel[]): Promise<void>;
  deleteModels(): Promise<void>;
}

interface Paused {
  readonly retryAfterSeconds: number;
  readonly reason: string | null;
}

const modelsFact = "agl-models";
const pauseFact = "agl-pause";
const defaultRetryAfterSeconds = 5;

/**
 * Pause and models as Agent Lightning's trainer sets them. Both are durable before they act, so that
 * a controller that comes after a kill shuts its gate again before a sidecar can connect.
 */
export async function openAglGateway(
  port: Pick<AglPort, "gate" | "facts" | "publishModels">,
): Promise<AglGateway> {
  const { gate, facts } = port;
  let models = (await facts.fact<readonly AglModel[]>(modelsFact)) ?? [];
  let paused = (await facts.fact<Paused | null>(pauseFact)) ?? undefined;
  let pauseCount = 0;
  let isDrained = false;

  const shutGate = (): void => {
    const own = ++pauseCount;
    isDrained = false;
    void gate.pause(paused?.reason ?? "paused by the trainer").then((drained) => {
      if (own === pauseCount && drained) isDrained = true;
    });
  };
  const inflight = (): number => {
    if (paused === undefined) return gate.inFlight();
    return isDrained ? 0 : Math.max(1, gate.inFlight());
  };
  const state = (): GatewayState => ({
    paused: paused !== undefined,
    retry_after_seconds: paused?.retryAfterSeconds ?? defaultRetryAfterSeconds,
    reason: paused?.reason ?? null,
    inflight: inflight(),
  });
  if (models.length > 0) port.publishModels(models);
  if (paused !== undefined) shutGate();
  return {
    pause: async (retryAfterSeconds, reason) => {
      const wasPaused = paused !== undefined;
      const next = { retryAfterSeconds, reason };
      await facts.setFact(pauseFact, next);
      paused = next;
      if (!wasPaused) shutGate();
      return state();
    },
    resume: async () => {
      await facts.setFact(pauseFact, null);
      paused = undefined;
      pauseCount += 1;
      gate.resume();
      return state();
    },
    state,
    models: () => models,
    registerModels: async (wanted) => {
      const key = ({ model, endpoint }: AglModel): string => JSON.stringify([model, endpoint]);
      const byKey = new Map([...models, ...wanted].map((model) => [key(model), model]));
      models = [...byKey.values()];
      await facts.setFact(modelsFact, models);
      port.publishModels(models);
    },
    deleteModels: async () => {
      models = [];
      await facts.setFact(modelsFact, models);
    },
  };
}
