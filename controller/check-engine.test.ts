import { describe, expect, it } from "vitest";
import type { TrainerBackend } from "../core/trainer-backend.ts";
import { checkEngine } from "./check-engine.ts";
import type { IngestServer, SidecarView } from "./ingest/ingest-server.ts";

type Engine = SidecarView["engines"][number];
const url = "http://127.0.0.1:1/v1";
const engine = (over: Partial<Engine>): Engine => ({
  url,
  healthy: true,
  canaryDone: true,
  canaryProblem: "",
  streamsIds: true,
  ...over,
});
const backend = {
  policyEndpoints: () => Promise.resolve([{ url, model: "policy", version: 0 }]),
} as unknown as TrainerBackend;

/** Answers one list of engines after the other, the last one for ever. */
function check(...views: (readonly Engine[])[]): Promise<readonly string[]> {
  let asked = 0;
  const warnings: string[] = [];
  const ingest = {
    waitForSidecars: () => Promise.resolve([]),
    sidecars: () => [{ engines: views[Math.min(asked++, views.length - 1)] }],
  } as unknown as IngestServer;
  let nowMs = 0;
  const observer = { warning: (message: string) => warnings.push(message) };
  const { signal } = new AbortController();
  const now = (): number => (nowMs += 20_000);
  return checkEngine(ingest, backend, { observer, signal, now }).then(() => warnings);
}

describe("checkEngine", () => {
  it("refuses an engine that returns no token ids, and says what the check found", async () => {
    const bad = engine({ canaryProblem: "the response has no token_ids" });
    await expect(check([bad])).rejects.toMatchObject({
      reason: "engine-unusable",
      origin: "engine",
      message: `the engine ${url} cannot be trained with: the response has no token_ids`,
    });
  });

  it("waits for the check, and does not take a connection that failed for an answer", async () => {
    const starting = engine({ canaryDone: false, canaryProblem: "ECONNREFUSED" });
    expect(await check([], [starting], [engine({})])).toEqual([]);
  });

  it("passes over the engine of an earlier session", async () => {
    const old = engine({ url: "http://127.0.0.1:2/v1", canaryProblem: "gone" });
    expect(await check([old, engine({})])).toEqual([]);
  });

  it("warns when there is no answer in time", async () => {
    expect(await check([])).toHaveLength(1);
  });
});
