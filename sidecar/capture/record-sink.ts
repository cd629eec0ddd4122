import type { FinishedCall } from "./finished-call.ts";

/** Something other than a call that the controller should know. */
export interface SidecarEvent {
  readonly eventId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}

/** Where records go: the uplink, or a file when there is no controller. Never throws. */
export interface RecordSink {
  /** False when the record was lost; the sink has counted and logged it. */
  record(call: FinishedCall): boolean;
  event(event: SidecarEvent): boolean;
  /** Nearly full: new calls are better held than lost. */
  readonly isUnderPressure: boolean;
  /** Records can be kept at all. */
  readonly isHealthy: boolean;
  close(graceMs: number): Promise<void>;
}
