import { describe, expect, it } from "vitest";
import { openAglGateway } from "./agl-gateway.ts";
import type { AglModel } from "./agl-port.ts";

/** A gate and durable facts in memory. */
function rig() {
  const facts = new Map<string, string>();
  const pauses: { reason: string; settle: (drained: boolean) => void }[] = [];
  const published: (readonly AglModel[])[] = [];
  const seen = { resumes: 0, inFlight: 3 };
  const port: Parameters<typeof openAglGateway>[0] = {
    gate: {
      pause: (reason) => new Promise((settle) => pauses.push({ reason, settle })),
      resume: () => {
        seen.resumes += 1;
      },
      inFlight: () => seen.inFlight,
    },
    facts: {
      fact: async <T>(name: string) =>
        facts.has(name) ? (JSON.parse(facts.get(name) as string) as T) : undefined,
      setFact: async (name, value) => void facts.set(name, JSON.stringify(value)),
    },
    publishModels: (models) => published.push(models),
  };
  return { port, pauses, published, seen, open: () => openAglGateway(port) };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("the gateway", () => {
  it("invariant 9: in flight is 0 only when every sidecar has said drained", async () => {
    const { open, pauses, seen } = rig();
    const gateway = await open();
    expect(gateway.state()).toEqual({
      paused: false,
      retry_after_seconds: 5,
      reason: null,
      inflight: 3,
    });
    expect(await gateway.pause(8, "update")).toMatchObject({ paused: true, inflight: 3 });
    seen.inFlight = 0;
    expect(gateway.state().inflight, "not yet reported").toBe(1);
    pauses[0]?.settle(true);
    await turn();
    expect(gateway.state()).toEqual({
      paused: true,
      retry_after_seconds: 8,
      reason: "update",
      inflight: 0,
    });
  });

  it("a pause during a pause keeps what is drained; a late report of an old pause counts for nothing", async () => {
    const { open, pauses } = rig();
    const gateway = await open();
    await gateway.pause(5, "one");
    await gateway.pause(6, "two");
    expect(pauses).toHaveLength(1);
    await gateway.resume();
    await gateway.pause(5, "three");
    pauses[0]?.settle(true);
    await turn();
    expect(gateway.state().inflight).toBe(3);
    pauses[1]?.settle(false);
    await turn();
    expect(gateway.state().inflight, "superseded is not drained").toBe(3);
  });

  it("a controller that comes after shuts the gate and knows the engines", async () => {
    const { open, pauses, published, seen } = rig();
    const model = { model: "m", endpoint: "http://a/v1", version: 1 };
    const first = await open();
    await first.registerModels([model]);
    await first.pause(7, "update");
    const second = await open();
    expect(pauses.map(({ reason }) => reason)).toEqual(["update", "update"]);
    expect(published).toEqual([[model], [model]]);
    expect(second.state()).toMatchObject({ paused: true, retry_after_seconds: 7 });
    await second.resume();
    await second.resume();
    expect(seen.resumes).toBe(2);
    expect((await open()).state().paused).toBe(false);
  });

  it("registers by name and address; deleting keeps what is published until there are new ones", async () => {
    const { open, published } = rig();
    const gateway = await open();
    const model = { model: "m", endpoint: "http://a/v1", version: 1 };
    await gateway.registerModels([model, { ...model, endpoint: "http://b/v1" }]);
    await gateway.registerModels([{ ...model, version: 2 }]);
    expect(gateway.models()).toEqual([
      { ...model, version: 2 },
      { ...model, endpoint: "http://b/v1" },
    ]);
    await gateway.deleteModels();
    expect(gateway.models()).toEqual([]);
    expect(published.at(-1)).toHaveLength(2);
  });
});
