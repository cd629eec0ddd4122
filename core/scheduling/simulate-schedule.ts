import { decideSchedule, type ScheduleAction, type ScheduleSettings } from "./decide-schedule.ts";
import { createEventHeap } from "./event-heap.ts";
import { encodeScheduleEvent, parseScheduleLog, type ScheduleEvent } from "./schedule-event.ts";
import {
  applyScheduleEvent,
  initialScheduleState,
  type ScheduleRegistry,
  type ScheduleState,
} from "./schedule-state.ts";
import {
  type CallOrder,
  createSimulatedEngine,
  type SimulatedRollout,
} from "./simulated-engine.ts";
import type { Workload } from "./workload.ts";

/**
 * A process that is killed and comes back at once.
 * `controller`: its memory is gone and rebuilt from the log, as JSON; the rest goes on.
 * `trainer`: the step or publication in progress starts again under the same update id.
 * `engine`: calls in flight are aborted and issued again.
 * `harness`: running rollouts start again at turn 0.
 */
export interface SimulatedFault {
  readonly atMs: number;
  readonly process: "controller" | "trainer" | "engine" | "harness";
}

export interface SimulationOptions {
  readonly settings: ScheduleSettings;
  readonly callOrder: CallOrder;
  readonly faults?: readonly SimulatedFault[];
}

type Timer =
  | {
      readonly kind: "call-done" | "tool-done";
      readonly rollout: SimulatedRollout;
      readonly epoch: number;
    }
  | { readonly kind: "step-done" | "publish-done"; readonly epoch: number }
  | { readonly kind: "wake" }
  | { readonly kind: "fault"; readonly fault: SimulatedFault };

export function workloadRegistry(workload: Workload): ScheduleRegistry {
  const rolloutCounts = new Map<string, number>();
  const groupIds = new Map<string, string>();
  for (const { groupId, rollouts } of workload.groups) {
    rolloutCounts.set(groupId, rollouts.length);
    for (const { rolloutId } of rollouts) groupIds.set(rolloutId, groupId);
  }
  return {
    stepCount: workload.steps,
    groupCount: workload.groups.length,
    rolloutCountOf: (groupId) => rolloutCounts.get(groupId) ?? 0,
    groupIdOf: (rolloutId) => groupIds.get(rolloutId) ?? "",
  };
}

/**
 * Runs the schedule's decision code on a virtual clock and returns the log.
 * Consumes: timers in order of time. Produces: events. It ends when no step is left or nothing can
 * happen any more; every wait is a timer, so it cannot hang.
 */
export function simulateSchedule(workload: Workload, options: SimulationOptions): ScheduleEvent[] {
  const registry = workloadRegistry(workload);
  const { settings } = options;
  const engine = createSimulatedEngine(workload.engine.slots, options.callOrder);
  const timers = createEventHeap<Timer>();
  const log: ScheduleEvent[] = [];
  const rolloutsOf = new Map<string, SimulatedRollout[]>();
  let state: ScheduleState = initialScheduleState(registry);
  let now = 0;
  let nextGroupIndex = 0;
  let trainerEpoch = 0;
  let wakeAtMs: number | undefined;
  let isDecisionDue = true;
  let trainerTask: "step-done" | "publish-done" | undefined;

  function emit(event: ScheduleEvent): void {
    log.push(event);
    state = applyScheduleEvent(state, event, registry);
    // A call by itself changes no decision: it can only make a group older.
    isDecisionDue ||= !event.type.startsWith("call-");
  }

  function admitNext(): void {
    const group = workload.groups[nextGroupIndex];
    if (group === undefined) return;
    emit({ t: now, type: "admit", groupId: group.groupId });
    const rollouts = group.rollouts.map(
      (rollout): SimulatedRollout => ({
        rollout,
        admissionIndex: nextGroupIndex,
        turn: 0,
        phase: "queued",
        epoch: 0,
      }),
    );
    nextGroupIndex += 1;
    rolloutsOf.set(group.groupId, rollouts);
    for (const rollout of rollouts) engine.enqueue(rollout);
  }

  function abortCall(rollout: SimulatedRollout): void {
    rollout.epoch += 1;
    if (rollout.phase !== "calling") return;
    engine.release(rollout);
    const { rolloutId } = rollout.rollout;
    emit({ t: now, type: "call-abort", rolloutId, turn: rollout.turn });
  }

  function endRollout(rollout: SimulatedRollout): void {
    rollout.phase = "ended";
    emit({ t: now, type: "rollout-end", rolloutId: rollout.rollout.rolloutId });
  }

  function dropGroup(groupId: string): void {
    for (const rollout of rolloutsOf.get(groupId) ?? []) {
      abortCall(rollout);
      rollout.phase = "ended";
    }
    emit({ t: now, type: "drop", groupId });
  }

  function cutGroup(groupId: string): void {
    for (const rollout of rolloutsOf.get(groupId) ?? []) {
      if (rollout.phase === "ended") continue;
      abortCall(rollout);
      endRollout(rollout);
    }
  }

  function startTrainer(kind: "step-done" | "publish-done"): void {
    trainerTask = kind;
    trainerEpoch += 1;
    const { stepMs, publishMs } = workload.trainer;
    const durationMs = kind === "step-done" ? stepMs : publishMs;
    timers.push(now + durationMs, { kind, epoch: trainerEpoch });
  }

  function perform(action: ScheduleAction): void {
    switch (action.type) {
      case "admit":
        for (let count = 0; count < action.groupCount; count += 1) admitNext();
        return;
      case "pause":
      case "resume":
        emit({ t: now, type: action.type });
        return;
      case "start-update":
        emit({
          t: now,
          type: "train-start",
          version: action.version,
          groups: [...action.groupIds],
        });
        startTrainer("step-done");
        return;
      case "publish":
        // Idempotent: a controller that lost its memory asks for a publication that is on its way.
        if (trainerTask === undefined) startTrainer("publish-done");
        if (state.trainer.state === "stepped") {
          state = { ...state, trainer: { ...state.trainer, state: "publishing" } };
        }
        return;
      case "drop":
        dropGroup(action.groupId);
        return;
      case "cut":
        cutGroup(action.groupId);
        return;
      case "wake":
        // One timer is enough: when it fires the schedule is asked again and may set the next.
        if (wakeAtMs === undefined || action.atMs < wakeAtMs) {
          wakeAtMs = action.atMs;
          timers.push(action.atMs, { kind: "wake" });
        }
        return;
    }
  }

  /** Decides until nothing is left to do now, then gives free slots to waiting calls. */
  function settle(): void {
    for (;;) {
      if (state.gate === "draining" && engine.inFlight.size === 0) {
        emit({ t: now, type: "drained" });
      }
      if (!isDecisionDue) break;
      isDecisionDue = false;
      const actions = decideSchedule({ ...state, nowMs: now }, settings);
      for (const action of actions) perform(action);
    }
    while (state.gate === "open") {
      const rollout = engine.startNext();
      if (rollout === undefined) break;
      startCall(rollout);
    }
  }

  function startCall(simulated: SimulatedRollout): void {
    const { rollout, turn, epoch } = simulated;
    const { rolloutId } = rollout;
    emit({ t: now, type: "call-start", rolloutId, turn, version: state.version });
    const callMs = rollout.turns[turn]?.callMs ?? 0;
    timers.push(now + callMs, { kind: "call-done", rollout: simulated, epoch });
  }

  function endCall(simulated: SimulatedRollout): void {
    const { rollout, turn, epoch } = simulated;
    engine.release(simulated);
    simulated.phase = "tool";
    emit({ t: now, type: "call-end", rolloutId: rollout.rolloutId, turn });
    const toolMs = rollout.turns[turn]?.toolMs ?? 0;
    timers.push(now + toolMs, { kind: "tool-done", rollout: simulated, epoch });
  }

  function endTool(simulated: SimulatedRollout): void {
    simulated.turn += 1;
    if (simulated.turn < simulated.rollout.turns.length) engine.enqueue(simulated);
    else endRollout(simulated);
  }

  function endTrainerTask(kind: "step-done" | "publish-done"): void {
    trainerTask = undefined;
    if (kind === "step-done") emit({ t: now, type: "train-end" });
    else emit({ t: now, type: "publish", version: state.version + 1 });
  }

  function strike({ process }: SimulatedFault): void {
    if (process === "controller") {
      const durable = parseScheduleLog(log.map(encodeScheduleEvent).join("\n"));
      const fresh = initialScheduleState(registry);
      state = durable.reduce((s, event) => applyScheduleEvent(s, event, registry), fresh);
    } else if (process === "trainer") {
      if (trainerTask !== undefined) startTrainer(trainerTask);
    } else {
      for (const rollout of [...rolloutsOf.values()].flat()) {
        if (rollout.phase === "ended") continue;
        if (process === "engine" && rollout.phase !== "calling") continue;
        abortCall(rollout);
        if (process === "harness") rollout.turn = 0;
        engine.enqueue(rollout);
      }
    }
  }

  function fire(timer: Timer): void {
    switch (timer.kind) {
      case "call-done":
        if (timer.epoch === timer.rollout.epoch) endCall(timer.rollout);
        return;
      case "tool-done":
        if (timer.epoch === timer.rollout.epoch) endTool(timer.rollout);
        return;
      case "step-done":
      case "publish-done":
        if (timer.epoch === trainerEpoch) endTrainerTask(timer.kind);
        return;
      case "wake":
        if (wakeAtMs !== undefined && wakeAtMs <= now) wakeAtMs = undefined;
        isDecisionDue = true;
        return;
      case "fault":
        strike(timer.fault);
        isDecisionDue = true;
        return;
    }
  }

  for (const fault of options.faults ?? []) timers.push(fault.atMs, { kind: "fault", fault });
  settle();
  while (state.stepsLeft > 0) {
    const next = timers.pop();
    if (next === undefined) break;
    now = next.key;
    fire(next.value);
    // Decide on all that is known at this moment: a call and a tool of 0 ms end together.
    if (timers.nextKey !== now) settle();
  }
  return log;
}
