import { describe, expect, it } from "vitest";
import { createRefusalEvents } from "./refusal-events.ts";

describe("createRefusalEvents", () => {
  it("gives one event per reason and interval, which counts those before it", () => {
    let now = 0;
    const events = createRefusalEvents(10_000, () => now);
    expect(events.note("unknown-identity")).toEqual({ reason: "unknown-identity", count: 1 });
    for (let i = 0; i < 1_000; i += 1) expect(events.note("unknown-identity")).toBeUndefined();
    expect(events.note("token-expired")).toEqual({ reason: "token-expired", count: 1 });
    now = 10_000;
    expect(events.note("unknown-identity")).toEqual({ reason: "unknown-identity", count: 1_001 });
    expect(events.note("unknown-identity")).toBeUndefined();
  });
});
