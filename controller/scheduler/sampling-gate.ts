import type { GateState } from "../../core/scheduling/schedule-state.ts";
import type { IngestServer } from "../ingest/ingest-server.ts";
import type { EmitScheduleEvent } from "./schedule-log.ts";

export interface SamplingGateOptions {
  readonly ingest: Pick<IngestServer, "pause" | "resume">;
  readonly limits: { readonly holdLimitMs: number; readonly drainLimitMs: number };
  readonly emit: EmitScheduleEvent;
  /** It has become drained. */
  readonly onDrained: () => void;
  readonly onFailed: (error: unknown) => void;
  readonly warn: (message: string) => void;
}

/** The sidecars' gates as one. */
export interface SamplingGate {
  readonly state: GateState;
  /** New calls are held from now on; it is `draining` until those in flight are over. */
  shut(signal: AbortSignal): void;
  open(): void;
}

export function createSamplingGate(options: SamplingGateOptions): SamplingGate {
  const { ingest, limits, emit, onDrained, onFailed, warn } = options;
  let state: GateState = "open";
  let pauseUnderWay: symbol | undefined;
  return {
    get state() {
      return state;
    },
    shut: (signal) => {
      const pause = Symbol("pause");
      pauseUnderWay = pause;
      state = "draining";
      emit({ type: "pause" });
      ingest
        .pause({
          reason: "weight-update",
          ...limits,
          timeoutMs: limits.drainLimitMs * 2,
          signal,
        })
        .then(({ drained, sidecars }) => {
          // With a device of its own the trainer publishes and resumes without waiting for the drain.
          if (pauseUnderWay !== pause || state !== "draining") return;
          if (!drained) {
            const late = sidecars.filter((s) => s.state !== "drained").map((s) => s.sidecarId);
            warn(`the update starts though not drained: ${late.join(", ")}`);
          }
          state = "drained";
          emit({ type: "drained" });
          onDrained();
        })
        .catch((error: unknown) => {
          if (!signal.aborted) onFailed(error);
        });
    },
    open: () => {
      if (state === "open") return;
      ingest.resume();
      state = "open";
      emit({ type: "resume" });
    },
  };
}
