import { describe, expect, it } from "vitest";
import type { PauseResult } from "../ingest/ingest-server.ts";
import { createSamplingGate } from "./sampling-gate.ts";

/** A gate over sidecars that answer when told to. */
function gateUnderTest() {
  const answers: { resolve(result: PauseResult): void; reject(error: Error): void }[] = [];
  const said: string[] = [];
  const gate = createSamplingGate({
    ingest: {
      pause: () => new Promise((resolve, reject) => answers.push({ resolve, reject })),
      resume: () => said.push("open the gates"),
    },
    limits: { holdLimitMs: 1, drainLimitMs: 1 },
    emit: ({ type }) => said.push(type),
    onDrained: () => said.push("told"),
    onFailed: (error) => said.push(String(error)),
    warn: (message) => said.push(message),
  });
  return { gate, said, answers, turn: () => new Promise((resolve) => setImmediate(resolve)) };
}
const never = new AbortController().signal;
const drained: PauseResult = { drained: true, sidecars: [] };

describe("createSamplingGate", () => {
  it("drains, is drained, opens", async () => {
    const { gate, said, answers, turn } = gateUnderTest();
    gate.shut(never);
    expect(gate.state).toBe("draining");
    answers[0]?.resolve(drained);
    await turn();
    expect(gate.state).toBe("drained");
    gate.open();
    gate.open();
    expect(gate.state).toBe("open");
    expect(said).toEqual(["pause", "drained", "told", "open the gates", "resume"]);
  });

  it("does not take the end of an earlier drain for that of a later one", async () => {
    const { gate, said, answers, turn } = gateUnderTest();
    gate.shut(never);
    gate.open();
    gate.shut(never);
    answers[0]?.resolve(drained);
    await turn();
    expect(gate.state).toBe("draining");
    answers[1]?.resolve(drained);
    await turn();
    expect(gate.state).toBe("drained");
    expect(said.filter((what) => what === "drained")).toHaveLength(1);
  });

  it("goes on after the limit, and names who was late", async () => {
    const { gate, said, answers, turn } = gateUnderTest();
    gate.shut(never);
    const sidecars = [{ sidecarId: "slow", state: "draining" as const }];
    answers[0]?.resolve({ drained: false, sidecars });
    await turn();
    expect(gate.state).toBe("drained");
    expect(said).toContain("the update starts though not drained: slow");
  });

  it("says that a pause failed, unless the run is being stopped", async () => {
    const { gate, said, answers, turn } = gateUnderTest();
    const stop = new AbortController();
    gate.shut(stop.signal);
    answers[0]?.reject(new Error("no ingest"));
    await turn();
    expect(said).toContain("Error: no ingest");
    gate.shut(stop.signal);
    stop.abort();
    answers[1]?.reject(new Error("stopping"));
    await turn();
    expect(said).not.toContain("Error: stopping");
  });
});
