import type { ScheduleEvent } from "./schedule-event.ts";

/** What a log is checked against. Limits that are absent are not checked. */
export interface ScheduleLogLimits {
  readonly maxStaleness: number;
  /** True where sampling and training share a device: nothing is in flight while it trains. */
  readonly isDeviceShared: boolean;
  readonly slotCount?: number;
  /**
   * Of a log recorded from processes that talk to each other: how long (ms) a command may be on its
   * way to the gate and to the engine. Absent = 0: a simulation knows everything at once.
   */
  readonly commandDelayMs?: number;
  groupIdOf(rolloutId: string): string;
  /** Calls that a rollout must have finished before it is trained; undefined = not known. */
  turnCountOf(rolloutId: string): number | undefined;
  rolloutIdsOf(groupId: string): readonly string[];
}

/**
 * Checks a log, simulated or recorded, without knowing how it was decided: gate shut means no new
 * call, at most `slotCount` calls, turns in order, groups trained whole, once and within the bound.
 * @returns one sentence per violation with its time; empty when the log is sound
 */
export function checkScheduleLog(
  events: readonly ScheduleEvent[],
  limits: ScheduleLogLimits,
): readonly string[] {
  const violations: string[] = [];
  const groups = new Map<string, "admitted" | "training" | "trained" | "dropped">();
  const lowestVersions = new Map<string, number>();
  const finishedTurns = new Map<string, number>();
  const ended = new Set<string>();
  const inFlight = new Set<string>();
  const delayMs = limits.commandDelayMs ?? 0;
  let gate: "open" | "shut" | "drained" = "open";
  let shutAt = 0;
  let isStepping = false;
  let version = 0;
  let publishedAt = 0;
  let training: readonly string[] = [];
  let lastT = 0;

  function checkCallStart(event: Extract<ScheduleEvent, { type: "call-start" }>): void {
    const { rolloutId, turn } = event;
    const fail = failAt(event);
    const groupId = limits.groupIdOf(rolloutId);
    const isShut = gate === "drained" || (gate === "shut" && isLate(event, shutAt));
    if (isShut) fail(`${rolloutId} starts a call while the gate is shut`);
    if (!isServed(event)) fail(`${rolloutId} calls at ${event.version}, not ${version}`);
    const groupState = groups.get(groupId);
    // In real time the harness of a dropped group has to be told, and ended, first.
    const isBeingDropped = groupState === "dropped" && delayMs > 0;
    if (groupState !== "admitted" && !isBeingDropped) {
      fail(`${rolloutId} calls; its group is not active`);
    }
    if (ended.has(rolloutId) && !isBeingDropped) fail(`${rolloutId} calls after its end`);
    if (inFlight.has(rolloutId)) fail(`${rolloutId} has two calls in flight`);
    // A restarted attempt begins at turn 0 again.
    const next = finishedTurns.get(rolloutId) ?? 0;
    if (turn !== next && turn !== 0) fail(`${rolloutId} calls turn ${turn}, expected ${next}`);
    inFlight.add(rolloutId);
    if (inFlight.size > (limits.slotCount ?? Number.POSITIVE_INFINITY)) {
      fail(`${inFlight.size} calls in flight, the engine has ${limits.slotCount} slots`);
    }
    const lowest = lowestVersions.get(groupId) ?? event.version;
    lowestVersions.set(groupId, Math.min(event.version, lowest));
  }

  function isLate(event: ScheduleEvent, commandAt: number): boolean {
    return event.t > commandAt + delayMs || delayMs === 0;
  }

  /** Recorded: the engine has the new version before the log says so, or has it a moment later. */
  function isServed(event: Extract<ScheduleEvent, { type: "call-start" }>): boolean {
    if (event.version === version) return true;
    if (delayMs === 0) return false;
    const isComing = event.version === version + 1 && training.length > 0;
    return isComing || (event.version === version - 1 && !isLate(event, publishedAt));
  }

  function checkTrainStart(event: Extract<ScheduleEvent, { type: "train-start" }>): void {
    const fail = failAt(event);
    // A session that finishes the update of one that died says its start again.
    if (training.length > 0 && event.version === version && isSame(event.groups, training)) {
      isStepping = true;
      return;
    }
    if (isStepping) fail("an update starts while another runs");
    if (event.version !== version) fail(`update from ${event.version}, not ${version}`);
    if (limits.isDeviceShared && inFlight.size > 0) fail(`trains with ${inFlight.size} in flight`);
    for (const groupId of event.groups) {
      const state = groups.get(groupId) ?? "not admitted";
      if (state !== "admitted") fail(`${groupId} is trained but ${state}`);
      const staleness = version - (lowestVersions.get(groupId) ?? version);
      if (staleness > limits.maxStaleness) fail(`${groupId} is trained at staleness ${staleness}`);
      for (const rolloutId of limits.rolloutIdsOf(groupId)) {
        if (!ended.has(rolloutId)) fail(`${groupId} is trained before ${rolloutId} ended`);
        const finished = finishedTurns.get(rolloutId) ?? 0;
        const wanted = limits.turnCountOf(rolloutId) ?? finished;
        if (finished !== wanted)
          fail(`${rolloutId} is trained after ${finished} of ${wanted} calls`);
      }
      groups.set(groupId, "training");
    }
    training = event.groups;
    isStepping = true;
  }

  function checkPublish(event: Extract<ScheduleEvent, { type: "publish" }>): void {
    const fail = failAt(event);
    if (gate === "open") fail("publishes with the gate open");
    if (isStepping) fail("publishes before the update has ended");
    // An update that had nothing to learn publishes the version that it started from.
    const isNext = event.version === version + 1 || event.version === version;
    if (!isNext) fail(`publishes ${event.version} after ${version}`);
    for (const groupId of training) groups.set(groupId, "trained");
    training = [];
    version = event.version;
    publishedAt = event.t;
  }

  function failAt(event: ScheduleEvent): (what: string) => void {
    return (what) => violations.push(`t=${event.t}: ${what}`);
  }

  for (const event of events) {
    const fail = failAt(event);
    if (event.t < lastT) fail(`time goes back from ${lastT}`);
    lastT = event.t;
    switch (event.type) {
      case "admit":
        if (groups.has(event.groupId)) fail(`${event.groupId} is admitted twice`);
        groups.set(event.groupId, "admitted");
        break;
      case "call-start":
        checkCallStart(event);
        if (event.turn === 0) finishedTurns.set(event.rolloutId, 0);
        break;
      case "call-end":
      case "call-abort":
        if (!inFlight.delete(event.rolloutId)) fail(`${event.rolloutId} ends a call it has not`);
        if (event.type === "call-end") finishedTurns.set(event.rolloutId, event.turn + 1);
        break;
      case "rollout-end":
        if (ended.has(event.rolloutId)) fail(`${event.rolloutId} ends twice`);
        ended.add(event.rolloutId);
        break;
      case "pause":
        if (gate === "open") shutAt = event.t;
        gate = "shut";
        break;
      case "drained":
        gate = "drained";
        if (inFlight.size > 0) fail(`drained with ${inFlight.size} calls in flight`);
        break;
      case "resume":
        gate = "open";
        break;
      case "train-start":
        checkTrainStart(event);
        break;
      case "train-end":
        isStepping = false;
        break;
      case "publish":
        checkPublish(event);
        break;
      case "drop":
        if (groups.get(event.groupId) !== "admitted") fail(`${event.groupId} cannot be dropped`);
        groups.set(event.groupId, "dropped");
        break;
    }
  }
  return violations;
}

function isSame(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((one, i) => one === b[i]);
}
