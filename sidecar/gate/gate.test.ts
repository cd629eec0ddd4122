import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Gate, type GateClock, type GateOrder, type GateStatus, type Passage } from "./gate.ts";

/** Time that moves only when told. */
function manualClock(): GateClock & { advance(ms: number): void } {
  let now = 0;
  let timers: { atMs: number; callback: () => void }[] = [];
  return {
    nowMs: () => now,
    schedule: (ms, callback) => {
      const timer = { atMs: now + ms, callback };
      timers.push(timer);
      return () => {
        timers = timers.filter((other) => other !== timer);
      };
    },
    advance: (ms) => {
      now += ms;
      const due = timers.filter((timer) => timer.atMs <= now);
      timers = timers.filter((timer) => timer.atMs > now);
      for (const timer of due) timer.callback();
    },
  };
}

const pause: GateOrder = {
  commandId: "p",
  paused: true,
  reason: "update",
  holdLimitMs: 1_000,
  drainLimitMs: 0,
};
const resume: GateOrder = { ...pause, commandId: "r", paused: false };
const never = new AbortController().signal;

function setUp() {
  const clock = manualClock();
  const reports: GateStatus[] = [];
  const gate = new Gate(clock, (status) => reports.push(status));
  return { clock, reports, gate };
}

describe("the gate", () => {
  it("reports drained once the last call has left, and not before", () => {
    const { gate, reports } = setUp();
    const one = gate.tryEnter() as Passage;
    const two = gate.tryEnter() as Passage;
    gate.apply(pause);
    one.leave();
    one.leave();
    expect(reports.map((report) => report.drained)).toEqual([false, false]);
    two.leave();
    expect(reports.at(-1)).toMatchObject({ drained: true, inFlight: 0, commandId: "p" });
  });

  it("an idle gate is drained at once", () => {
    const { gate, reports } = setUp();
    gate.apply(pause);
    expect(reports).toMatchObject([{ drained: true, paused: true }]);
  });

  it("admits what it held, with the time for which it was held", async () => {
    const { gate, clock } = setUp();
    gate.apply(pause);
    const held = gate.enter(never);
    clock.advance(300);
    gate.apply(resume);
    expect(await held).toMatchObject({ kind: "admitted", heldMs: 300 });
    expect(gate.status()).toMatchObject({ inFlight: 1, held: 0, drained: false });
  });

  it("refuses at the hold limit, which counts what was held before", async () => {
    const { gate, clock } = setUp();
    gate.apply(pause);
    const held = gate.enter(never, 600);
    clock.advance(399);
    expect(gate.status().held).toBe(1);
    clock.advance(1);
    expect(await held).toEqual({ kind: "hold-limit", heldMs: 1_000 });
  });

  it("forgets a call whose harness has gone", async () => {
    const { gate } = setUp();
    gate.apply(pause);
    const gone = new AbortController();
    const held = gate.enter(gone.signal);
    gone.abort();
    expect(await held).toMatchObject({ kind: "gone" });
    expect(gate.status().held).toBe(0);
  });

  it("at the drain limit asks only those in flight, and only they leave that gave up", () => {
    const { gate, clock } = setUp();
    const silent = gate.tryEnter() as Passage;
    const talking = gate.tryEnter() as Passage;
    silent.onDrainLimit = () => true;
    talking.onDrainLimit = () => false;
    gate.apply({ ...pause, drainLimitMs: 100 });
    clock.advance(99);
    expect(gate.status().inFlight).toBe(2);
    clock.advance(1);
    expect(gate.status()).toMatchObject({ inFlight: 1, drained: false });
  });

  it("a resume before the drain limit cancels it", () => {
    const { gate, clock } = setUp();
    const passage = gate.tryEnter() as Passage;
    passage.onDrainLimit = () => true;
    gate.apply({ ...pause, drainLimitMs: 100 });
    gate.apply(resume);
    clock.advance(1_000);
    expect(gate.status().inFlight).toBe(1);
  });

  it("close lets nobody wait on", async () => {
    const { gate } = setUp();
    gate.apply(pause);
    const held = gate.enter(never);
    gate.close();
    expect(await held).toMatchObject({ kind: "hold-limit" });
  });

  it("never admits while paused, whatever comes in whatever order", async () => {
    const step = fc.constantFrom("pause", "resume", "try", "enter", "leave", "tick");
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const { gate, clock } = setUp();
        const inside: Passage[] = [];
        let paused = false;
        let heldAdmissions = 0;
        for (const name of steps) {
          if (name === "pause" || name === "resume") {
            paused = name === "pause";
            gate.apply(paused ? pause : resume);
          } else if (name === "try") {
            const passage = gate.tryEnter();
            expect(passage === undefined).toBe(paused);
            if (passage !== undefined) inside.push(passage);
          } else if (name === "enter") {
            void gate.enter(never).then((admission) => {
              if (admission.kind !== "admitted") return;
              heldAdmissions += 1;
              inside.push(admission.passage);
            });
          } else if (name === "leave") inside.pop()?.leave();
          else clock.advance(100);
          await Promise.resolve();
          await Promise.resolve();
          expect(gate.status().inFlight).toBe(inside.length);
          if (paused) expect(gate.status().drained).toBe(inside.length === 0);
        }
        expect(heldAdmissions).toBeGreaterThanOrEqual(0);
      }),
      { numRuns: 200 },
    );
  });
});
