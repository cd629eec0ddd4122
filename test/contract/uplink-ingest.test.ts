import { randomUUID } from "node:crypto";
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { Server } from "@grpc/grpc-js";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type IngestOptions,
  type IngestServer,
  serveSampleStream,
} from "../../controller/ingest/ingest-server.ts";
import { type CallStore, openCallStore } from "../../controller/store/call-store.ts";
import { migrations } from "../../controller/store/migrations.ts";
import { type Database, openDatabase } from "../../controller/store/open-database.ts";
import type { Welcome } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import {
  type Capability,
  openTokenVerifier,
  signCapability,
} from "../../runtime/capability-token.ts";
import { generateTokenKeys } from "../../runtime/capability-token-keys.ts";
import { bindGrpcServer, closeGrpcServer, createGrpcServer } from "../../runtime/grpc-server.ts";
import { compileOperatorRules } from "../../sidecar/redaction/operator-rules.ts";
import { openUplink, type Uplink, type UplinkOptions } from "../../sidecar/uplink/uplink.ts";
import {
  finishedCall,
  silentLog,
  temporaryDirectory,
  trajectoryCall,
} from "./record-path-fixtures.ts";

/** A real server, store and uplinks in this process, over loopback. */
const keys = generateTokenKeys();
let directory: ReturnType<typeof temporaryDirectory>;
let database: Database;
let store: CallStore;
let controller: { server: Server; ingest: IngestServer; port: number } | undefined;
let uplinks: Uplink[];

beforeEach(async () => {
  directory = temporaryDirectory("uplink");
  database = await openDatabase({ path: ":memory:", migrations });
  store = await openCallStore(database);
  uplinks = [];
});
afterEach(async () => {
  await Promise.all(uplinks.map((uplink) => uplink.close(0)));
  await stopController();
  await database.destroy();
  directory.remove();
});

async function startController(
  options: Partial<IngestOptions> = {},
  port = 0,
): Promise<IngestServer> {
  const server = createGrpcServer();
  const ingest = serveSampleStream(server, {
    store,
    verifier: await openTokenVerifier(keys.publicKeyPem),
    tokenPublicKeyPem: keys.publicKeyPem,
    capture: {},
    log: silentLog,
    ...options,
  });
  controller = { server, ingest, port: await bindGrpcServer(server, { host: "127.0.0.1", port }) };
  return ingest;
}

async function stopController(): Promise<number> {
  const stopped = controller;
  controller = undefined;
  if (stopped === undefined) return 0;
  await stopped.ingest.close();
  await closeGrpcServer(stopped.server, 0);
  return stopped.port;
}

/** What an uplink was told, with a promise of what it will be. */
function journal() {
  const entries: unknown[][] = [];
  const listeners = new Set<() => void>();
  return {
    entries,
    add: (...entry: unknown[]): void => {
      entries.push(entry);
      for (const listener of listeners) listener();
    },
    until: (test: (entry: unknown[]) => boolean): Promise<unknown[]> =>
      new Promise((resolve) => {
        const look = (): void => {
          const found = entries.find(test);
          if (found === undefined) return;
          listeners.delete(look);
          resolve(found);
        };
        listeners.add(look);
        look();
      }),
  };
}

interface Side {
  readonly uplink: Uplink;
  readonly heard: ReturnType<typeof journal>;
}

async function startSidecar(
  name: string,
  options: {
    capability?: Partial<Capability>;
    token?: string;
    reportsDrained?: boolean;
  } & Partial<Omit<UplinkOptions, "token">> = {},
): Promise<Side> {
  const { capability, token, reportsDrained = true, ...rest } = options;
  const signed =
    token === undefined
      ? await signCapability(
          {
            rolloutId: "*",
            attemptId: "*",
            scopes: ["sidecar"],
            mode: "train",
            expiresAtMs: Date.now() + 60_000,
            ...capability,
          },
          keys.privateKeyPem,
        )
      : "";
  const heard = journal();
  const answer = (commandId: string, paused: boolean): void =>
    uplink.reportGate({
      commandId,
      paused,
      drained: paused && reportsDrained,
      inFlight: 0,
      held: 0,
    });
  const uplink: Uplink = openUplink({
    controllerAddress: `127.0.0.1:${controller?.port ?? 1}`,
    token: () => token ?? signed,
    hello: () => ({ sidecarId: name, harnessUrl: `http://${name}`, version: "1" }),
    spoolDir: join(directory.path, `spool-${name}`),
    log: silentLog,
    handlers: {
      onWelcome: (welcome, { cached }) => {
        heard.add("welcome", welcome, cached);
        if (!cached && welcome.gate !== undefined)
          answer(welcome.gate.commandId, welcome.gate.paused);
      },
      onGate: (command) => {
        heard.add("gate", command.paused, command);
        answer(command.commandId, command.paused);
      },
      onPolicy: (update) => heard.add("policy", Number(update.version)),
      onBindings: (update) =>
        heard.add(
          "bindings",
          update.bindings.map((b) => b.rolloutId),
        ),
    },
    ...rest,
  });
  uplinks.push(uplink);
  return { uplink, heard };
}

const isWelcome = (entry: unknown[]): boolean => entry[0] === "welcome" && entry[2] === false;

describe("records", () => {
  it("arrive in full: a prompt of 200,000 tokens and what goes on from it", async () => {
    await startController();
    const { uplink } = await startSidecar("a");
    const prompt = Int32Array.from({ length: 200_000 }, (_, i) => (i * 7919) % 151_936);
    uplink.record(finishedCall("q0", prompt, [1, 2]));
    uplink.record(finishedCall("q1", [...prompt, 1, 2, 3], [4]));
    await uplink.close(20_000);
    const calls = await store.callsOfAttempt("r1", "r1-0");
    expect(calls.map((c) => c.promptIds?.length)).toEqual([200_000, 200_003]);
    expect(calls[1]?.promptIds?.subarray(0, 200_000)).toEqual(prompt);
    expect(uplink.status()).toMatchObject({ unackedRecords: 0, droppedRecords: 0 });
  });

  it("made before there is a controller arrive once there is one, and are sent once", async () => {
    await startController();
    const port = await stopController();
    const { uplink } = await startSidecar("a", {
      controllerAddress: `127.0.0.1:${port}`,
      random: () => 0,
    });
    for (let i = 0; i < 50; i += 1) uplink.record(trajectoryCall("a", i));
    const ingest = await startController({}, port);
    await uplink.close(20_000);
    expect((await store.callCounts()).requests).toBe(50);
    expect(ingest.stats()).toMatchObject({ records: 50, duplicates: 0 });
    expect(ingest.stats().commits).toBeLessThan(50);
  });

  it("made one at a time on an idle connection arrive each", async () => {
    const committed = journal();
    await startController({
      maxBatchDelayMs: 1,
      onCommitted: ({ newRequestIds }) => newRequestIds.forEach((id) => committed.add(id)),
    });
    const { uplink, heard } = await startSidecar("a");
    await heard.until(isWelcome);
    for (let i = 0; i < 30; i += 1) {
      uplink.record(trajectoryCall("a", i));
      // Every third one comes while the one before is on its way.
      if (i % 3 !== 0) await committed.until(([id]) => id === `a-${i}`);
    }
    await uplink.close(10_000);
    expect((await store.callCounts()).requests).toBe(30);
  });

  it("are held back while the store is slow, and not acknowledged before it has them", async () => {
    let go: () => void = () => {};
    const slow = new Promise<void>((resolve) => {
      go = resolve;
    });
    const ingest = await startController({
      store: {
        ...store,
        appendRecords: async (batch) => slow.then(() => store.appendRecords(batch)),
      },
      maxQueuedBytes: 1000,
      maxBatchRecords: 1,
    });
    const { uplink } = await startSidecar("a");
    for (let i = 0; i < 200; i += 1) uplink.record(trajectoryCall("a", i));
    await ingest.waitForSidecars(1);
    const closing = uplink.close(20_000);
    await new Promise((resolve) => setImmediate(resolve));
    expect(uplink.status().unackedRecords).toBe(200);
    go();
    await closing;
    expect((await store.callCounts()).requests).toBe(200);
    expect(uplink.status().unackedRecords).toBe(0);
  });

  it("of a rollout that the sidecar's token is not for are not stored", async () => {
    const ingest = await startController();
    const { uplink } = await startSidecar("a", { capability: { rolloutId: "r1" } });
    uplink.record(finishedCall("q0", [1], [2], { rolloutId: "r2" }));
    uplink.record(finishedCall("q1", [1], [2]));
    await uplink.close(10_000);
    expect(ingest.stats()).toMatchObject({ refusedRecords: 1, records: 1 });
    expect(await store.callCounts()).toMatchObject({ requests: 1 });
    expect(await store.callCounts("r2")).toMatchObject({ requests: 0 });
  });

  it("refer to nothing that another store has", async () => {
    await startController();
    const { uplink, heard } = await startSidecar("a", { random: () => 0 });
    uplink.record(finishedCall("q0", [1, 2], [3]));
    await heard.until(isWelcome);
    const port = await stopController();
    await database.destroy();
    database = await openDatabase({ path: ":memory:", migrations });
    store = await openCallStore(database);
    const storeId = store.storeId;
    await startController({}, port);
    await heard.until((e) => isWelcome(e) && (e[1] as Welcome).storeId === storeId);
    uplink.record(finishedCall("q1", [1, 2, 3], [4]));
    await uplink.close(10_000);
    const calls = await store.callsOfAttempt("r1", "r1-0");
    expect(calls.find((c) => c.requestId === "q1")?.promptIds).toEqual(Int32Array.of(1, 2, 3));
  });

  it("of a spool that lost its end with its machine, whose numbers come again, are not lost", async () => {
    await startController();
    const before = await startSidecar("a");
    for (let i = 0; i < 5; i += 1) before.uplink.record(trajectoryCall("a", i));
    await before.uplink.close(10_000);
    const spoolDir = join(directory.path, "spool-a");
    for (const name of readdirSync(spoolDir).filter((n) => n !== "spool-id"))
      rmSync(join(spoolDir, name));
    const after = await startSidecar("a");
    await after.heard.until(isWelcome);
    for (let i = 20; i < 23; i += 1) after.uplink.record(trajectoryCall("a", i));
    await after.uplink.close(10_000);
    expect((await store.callCounts()).requests).toBe(8);
  });

  it("that find the spool full are dropped, counted, and reported for their attempt", async () => {
    await startController();
    const port = await stopController();
    const { uplink } = await startSidecar("a", {
      controllerAddress: `127.0.0.1:${port}`,
      spoolMaxBytes: 8000,
      random: () => 0,
    });
    const outcomes = Array.from({ length: 100 }, (_, i) => uplink.record(trajectoryCall("a", i)));
    const kept = outcomes.filter((outcome) => outcome.kept).length;
    expect(outcomes.at(-1)).toEqual({ kept: false, reason: "spool-full" });
    expect(uplink.status()).toMatchObject({ pressure: true, droppedRecords: 100 - kept });
    const ingest = await startController({}, port);
    uplink.reportSidecar({ calls: 100, incompleteCalls: 0, inFlight: 0, engines: [] });
    await ingest.waitForSidecars(1);
    await uplink.close(10_000);
    expect((await store.callCounts()).requests).toBe(kept);
    expect(ingest.sidecars()[0]?.droppedRecords).toBe(100 - kept);
    const { rolloutId, attemptId } = trajectoryCall("a", 99);
    const events = await store.eventsOfAttempt(rolloutId, attemptId);
    expect(events.map((e) => [e.eventType, JSON.parse(e.dataJson)])).toEqual([
      ["records-dropped", { count: Math.min(20, 100 - kept), reason: "spool-full" }],
    ]);
  });
});

describe("text", () => {
  const secret = ["ghp", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].join("_");
  const withText = (requestId: string) =>
    finishedCall(requestId, [1], [2], {
      requestText: new TextEncoder().encode(`{"content":"${secret} acct-17"}`),
      responseText: new TextEncoder().encode(`{"content":"ok ${secret}"}`),
    });

  it("is not captured by default", async () => {
    await startController();
    const { uplink, heard } = await startSidecar("a");
    await heard.until(isWelcome);
    uplink.record(withText("q0"));
    await uplink.close(10_000);
    expect(await store.textOfRequest("q0")).toEqual({ request: null, response: null });
  });

  it("is redacted before it is spooled, by built-in and by the operator's rules; events too", async () => {
    await compileOperatorRules(["loads the library"]);
    await startController({ capture: { captureText: true, redactionPatterns: ["acct-[0-9]+"] } });
    const { uplink, heard } = await startSidecar("a");
    await heard.until(isWelcome);
    // The rules are compiled in the background, at once where their library is loaded.
    await new Promise((resolve) => setImmediate(resolve));
    uplink.record(withText("q0"));
    uplink.event({
      eventId: randomUUID(),
      rolloutId: "r1",
      attemptId: "r1-0",
      eventType: "log",
      dataJson: `{"m":"${secret}"}`,
      atMs: 1,
    });
    await uplink.close(10_000);
    expect(await store.textOfRequest("q0")).toEqual({
      request: '{"content":"[redacted:github-token] [redacted:operator-1]"}',
      response: '{"content":"ok [redacted:github-token]"}',
    });
    expect((await store.eventsOfAttempt("r1", "r1-0"))[0]?.dataJson).toBe(
      '{"m":"[redacted:github-token]"}',
    );
  });
});

describe("commands", () => {
  it("pause every sidecar, those that connect later too, and say when all are drained", async () => {
    const ingest = await startController();
    const first = await startSidecar("a");
    const second = await startSidecar("b", { reportsDrained: false });
    await ingest.waitForSidecars(2);
    const pausing = ingest.pause({ reason: "update", holdLimitMs: 1000, drainLimitMs: 5 });
    const [, , command] = (await second.heard.until((e) => e[0] === "gate")) as [
      string,
      boolean,
      { commandId: string; reason: string },
    ];
    expect(command).toMatchObject({ reason: "update", holdLimitMs: 1000, drainLimitMs: 5 });
    const late = await startSidecar("c");
    const [, welcome] = await late.heard.until(isWelcome);
    expect((welcome as Welcome).gate).toMatchObject({ paused: true, commandId: command.commandId });
    second.uplink.reportGate({
      commandId: command.commandId,
      paused: true,
      drained: true,
      inFlight: 0,
      held: 2,
    });
    const result = await pausing;
    expect(result.drained).toBe(true);
    expect(result.sidecars.map((s) => s.state)).toEqual(result.sidecars.map(() => "drained"));
    expect(ingest.sidecars().find((s) => s.sidecarId === "b")?.held).toBe(2);
    ingest.resume();
    await first.heard.until((e) => e[0] === "gate" && e[1] === false);
    await late.heard.until((e) => e[0] === "gate" && e[1] === false);
  });

  it("a pause ends with its limit, with its signal, and with a sidecar that stays away", async () => {
    const ingest = await startController({ absenceLimitMs: 1 });
    const { uplink } = await startSidecar("a", { reportsDrained: false });
    await ingest.waitForSidecars(1);
    const settings = { reason: "update", holdLimitMs: 1000, drainLimitMs: 0 };
    expect(await ingest.pause({ ...settings, timeoutMs: 1 })).toEqual({
      drained: false,
      sidecars: [{ sidecarId: "a", state: "draining" }],
    });
    const stop = new AbortController();
    const aborted = ingest.pause({ ...settings, signal: stop.signal });
    stop.abort(new Error("shutting down"));
    await expect(aborted).rejects.toThrow("shutting down");
    const pausing = ingest.pause(settings);
    await uplink.close(0);
    expect(await pausing).toEqual({ drained: true, sidecars: [{ sidecarId: "a", state: "away" }] });
  });

  it("publish policies and bindings to those they are for, now and in later welcomes", async () => {
    const ingest = await startController();
    const { heard } = await startSidecar("a");
    await heard.until(isWelcome);
    ingest.publishPolicy({
      model: "m",
      version: 7,
      endpoints: [{ url: "http://e/v1", apiKey: "k" }],
    });
    ingest.publishBindings([
      { rolloutId: "r1", attemptId: "r1-0", sidecarId: "a", mode: "train" },
      { rolloutId: "r2", attemptId: "r2-0", sidecarId: "b", mode: "eval" },
    ]);
    await heard.until((e) => e[0] === "policy" && e[1] === 7);
    expect(await heard.until((e) => e[0] === "bindings")).toEqual(["bindings", ["r1"]]);
    const other = await startSidecar("b");
    const welcome = (await other.heard.until(isWelcome))[1] as Welcome;
    expect(welcome.policy).toMatchObject({ model: "m", version: 7n });
    expect(welcome.bindings.map((b) => [b.rolloutId, b.mode])).toEqual([["r2", "eval"]]);
  });

  it("a sidecar that restarts while the controller is away knows what it was told last", async () => {
    const ingest = await startController();
    const { uplink, heard } = await startSidecar("a");
    await heard.until(isWelcome);
    ingest.publishPolicy({ model: "m", version: 7, endpoints: [] });
    await heard.until((e) => e[0] === "policy");
    await uplink.close(0);
    await stopController();
    const again = await startSidecar("a");
    const [, cached, isCached] = await again.heard.until((e) => e[0] === "welcome");
    expect(isCached).toBe(true);
    expect(cached).toMatchObject({ tokenPublicKeyPem: keys.publicKeyPem, policy: { version: 7n } });
  });
});

describe("a connection is refused", () => {
  const cases: readonly [string, { token?: string; capability?: Partial<Capability> }][] = [
    ["without a token", { token: "" }],
    ["with another key's token", { token: "x.y.z" }],
    ["without the scope sidecar", { capability: { scopes: ["call"] } }],
  ];
  it.each(cases)("%s, and the records stay", async (_, options) => {
    const ingest = await startController();
    const errors = journal();
    const log = Object.assign(Object.create(silentLog) as typeof silentLog, {
      error: (fields: { reason?: string }) => errors.add(fields.reason),
    });
    const { uplink } = await startSidecar("a", { ...options, log });
    uplink.record(finishedCall("q0", [1], [2]));
    const [reason] = await errors.until(() => true);
    expect(reason).toMatch(/UNAUTHENTICATED|PERMISSION_DENIED/);
    expect(ingest.sidecars()).toEqual([]);
    await uplink.close(0);
    expect(uplink.status().unackedRecords).toBe(1);
  });
});
