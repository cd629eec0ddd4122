import type {
  GateReport,
  Hello,
  SidecarReport,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";

/** A sidecar as its messages describe it. */
export interface SidecarView {
  readonly sidecarId: string;
  readonly harnessUrl: string;
  readonly version: string;
  readonly connected: boolean;
  readonly paused: boolean;
  readonly drained: boolean;
  readonly inFlight: number;
  readonly held: number;
  readonly calls: number;
  readonly incompleteCalls: number;
  readonly droppedRecords: number;
  readonly spoolBytes: number;
  readonly engines: readonly {
    readonly url: string;
    readonly healthy: boolean;
    readonly canaryDone: boolean;
    readonly canaryProblem: string;
    readonly streamsIds: boolean;
  }[];
}

/** What is known of a sidecar: its hello, and its latest reports. */
export interface SidecarFacts {
  readonly hello: Hello;
  readonly isConnected: boolean;
  readonly gateReport: GateReport | undefined;
  readonly report: SidecarReport | undefined;
}

export function sidecarView({ hello, isConnected, gateReport, report }: SidecarFacts): SidecarView {
  return {
    sidecarId: hello.sidecarId,
    harnessUrl: hello.harnessUrl,
    version: hello.version,
    connected: isConnected,
    paused: gateReport?.paused ?? false,
    drained: gateReport?.drained ?? false,
    // While it is paused the gate reports every change, the sidecar only now and then.
    inFlight:
      gateReport?.paused === true
        ? gateReport.inFlight
        : (report?.inFlight ?? gateReport?.inFlight ?? 0),
    held: gateReport?.held ?? 0,
    calls: Number(report?.calls ?? 0n),
    incompleteCalls: Number(report?.incompleteCalls ?? 0n),
    droppedRecords: Number(report?.droppedRecords ?? 0n),
    spoolBytes: Number(report?.spoolBytes ?? 0n),
    engines: (report?.engines ?? []).map((engine) => ({
      url: engine.url,
      healthy: engine.healthy,
      canaryDone: engine.canaryDone,
      canaryProblem: engine.canaryProblem,
      streamsIds: engine.streamsIds,
    })),
  };
}
