import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { afterAll, afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type CallStore,
  openCallStore,
  type ReceivedRecord,
} from "../../controller/store/call-store.ts";
import { migrations } from "../../controller/store/migrations.ts";
import { type Database, openDatabase } from "../../controller/store/open-database.ts";
import { EventRecordSchema } from "../../proto/gen/outrigger/v1/record_pb.ts";
import { RecordSchema } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { FinishedCall } from "../../sidecar/capture/finished-call.ts";
import { type CapturedText, createRecordEncoder } from "../../sidecar/uplink/record-encoder.ts";
import {
  choiceOf,
  finishedCall,
  receivedCall,
  temporaryDirectory,
} from "./record-path-fixtures.ts";

const directory = temporaryDirectory("store");
afterAll(directory.remove);
let fileCount = 0;
const implementations: Readonly<Record<string, () => Promise<Database>>> = {
  "SQLite in memory": () => openDatabase({ path: ":memory:", migrations }),
  "SQLite in a file": () => {
    fileCount += 1;
    return openDatabase({
      path: join(directory.path, `${fileCount}.db`),
      durability: "power",
      migrations,
    });
  },
};

function spooled(
  calls: readonly FinishedCall[],
  text: CapturedText = {},
  spoolId = "spool",
): ReceivedRecord[] {
  const encoder = createRecordEncoder();
  return calls.map((call, i) => {
    const { record, remember } = encoder.encode(call, text);
    remember();
    const value = receivedCall(i + 1, record);
    return {
      spoolId,
      record: create(RecordSchema, { seq: BigInt(i + 1), body: { case: "call", value } }),
    };
  });
}

const event = (eventId: string, attemptId = "r1-0") => ({
  eventId,
  rolloutId: "r1",
  attemptId,
  eventType: "reward",
  dataJson: '{"value":1}',
  atMs: 5,
});

describe.each(Object.entries(implementations))("a call store: %s", (_, open) => {
  let database: Database;
  let store: CallStore;
  beforeEach(async () => {
    database = await open();
    store = await openCallStore(database);
  });
  afterEach(() => database.destroy());

  it("gives the calls of an attempt in order of arrival with their ids in full", async () => {
    const calls = [
      finishedCall("q0", [1, 2], [3]),
      finishedCall("other", [1, 2], [9], { attemptId: "r1-1" }),
      finishedCall("q1", [1, 2, 3, 4], [5]),
    ];
    await store.appendRecords(spooled(calls));
    const found = await store.callsOfAttempt("r1", "r1-0");
    expect(
      found.map((c) => [c.callId, [...(c.promptIds ?? [])], [...(c.responseIds ?? [])]]),
    ).toEqual([
      ["q0.0", [1, 2], [3]],
      ["q1.0", [1, 2, 3, 4], [5]],
    ]);
    expect(await store.callsOfAttempt("r1", "r1-2")).toEqual([]);
    const [request] = await store.requestsOfAttempt("r1", "r1-1");
    expect(request?.settings.model).toBe("policy");
  });

  it("takes a record once, however often it comes, in one batch or in several", async () => {
    const batch = spooled([finishedCall("q0", [1], [2]), finishedCall("q1", [1, 2], [3])]);
    const first = await store.appendRecords([...batch, batch[0] as ReceivedRecord]);
    expect(first).toEqual({ newRequestIds: ["q0", "q1"], newEventIds: [], duplicates: 1 });
    const again = await store.appendRecords(batch);
    expect(again).toEqual({ newRequestIds: [], newEventIds: [], duplicates: 2 });
    expect((await store.callCounts()).requests).toBe(2);
  });

  it("keeps events by id, from a sidecar or not", async () => {
    const value = create(EventRecordSchema, event("e1"));
    const record = create(RecordSchema, { seq: 1n, body: { case: "event", value } });
    expect((await store.appendRecords([{ spoolId: "spool", record }])).newEventIds).toEqual(["e1"]);
    const result = await store.appendEvents([event("e1"), event("e2"), event("e3", "r1-1")]);
    expect(result).toEqual({ newRequestIds: [], newEventIds: ["e2", "e3"], duplicates: 1 });
    expect(await store.eventsOfAttempt("r1", "r1-0")).toEqual([event("e1"), event("e2")]);
  });

  it("says when which version was sent what, of every request that an engine was sent", async () => {
    const { receivedAtMs, finishedAtMs, heldMs } = finishedCall("x", [1], [2]).timing;
    const neverSent = { receivedAtMs, finishedAtMs, heldMs };
    const spans = [
      { version: 5, start: 0, end: 1 },
      { version: 6, start: 1, end: 2 },
    ];
    await store.appendRecords(
      spooled([
        finishedCall("q0", [1], [2, 3], {
          choices: [choiceOf("q0", [2, 3], { policyVersions: spans })],
        }),
        finishedCall("q1", null, null, { choices: [], delivered: false }),
        finishedCall("refused", null, null, { choices: [], timing: neverSent }),
        finishedCall("again", [1], [2], { replayOf: "q0" }),
      ]),
    );
    const of = { rolloutId: "r1", attemptId: "r1-0", finishedAtMs };
    const sent = await store.sentRequests();
    expect(sent).toMatchObject([
      { ...of, version: 5, isDelivered: true },
      { ...of, version: 3, isDelivered: false },
    ]);
    expect(sent[0]?.sentAtMs).toBeCloseTo(1_767_225_600_001, 1);
  });

  it("counts requests by outcome and incomplete choices by reason", async () => {
    await store.appendRecords(
      spooled([
        finishedCall("q0", [1], [2]),
        finishedCall("q1", [1], [2], { delivered: false }),
        finishedCall("q2", null, null, { choices: [], errorReason: "engine-unreachable" }),
        finishedCall("q3", [1], null, {
          choices: [
            choiceOf("q3", null),
            choiceOf("q3", [1], { index: 1 }),
            choiceOf("q3", null, { index: 2 }),
          ],
        }),
        finishedCall("q4", [1], [2], { rolloutId: "r2", attemptId: "r2-0" }),
      ]),
    );
    expect(await store.callCounts()).toEqual({
      requests: 5,
      delivered: 3,
      undelivered: 1,
      failed: 1,
      completeCalls: 4,
      incompleteCalls: { "ids-missing": 2 },
    });
    expect(await store.callCounts("r2")).toMatchObject({ requests: 1, completeCalls: 1 });
    expect(await store.callCounts("r3")).toMatchObject({ requests: 0, incompleteCalls: {} });
  });

  it("counts and marks a record whose base it does not have; one in the same batch is a base", async () => {
    const [, second, third] = spooled([
      finishedCall("q0", [1, 2], [3]),
      finishedCall("q1", [1, 2, 3], [4]),
      finishedCall("q2", [1, 2, 3, 4], [5]),
    ]) as [ReceivedRecord, ReceivedRecord, ReceivedRecord];
    await store.appendRecords([second, third]);
    expect((await store.callCounts()).incompleteCalls).toEqual({ "base-missing": 1 });
    const calls = await store.callsOfAttempt("r1", "r1-0");
    expect(calls.map((c) => c.incompleteReason)).toEqual(["base-missing", "base-missing"]);
  });

  it("gives texts on demand through a chain of bases, and says what it has not", async () => {
    const encoder = createRecordEncoder();
    const texts = ["{[1]}", "{[1,2]}", "{[1,2,\u00fc]}"];
    const records = texts.map((text, i) => {
      const encoded = encoder.encode(finishedCall(`q${i}`, [i], [1]), {
        request: new TextEncoder().encode(text),
        ...(i === 2 && { response: new TextEncoder().encode("done") }),
      });
      encoded.remember();
      const body = { case: "call" as const, value: receivedCall(i + 1, encoded.record) };
      return { spoolId: "spool", record: create(RecordSchema, { seq: BigInt(i + 1), body }) };
    });
    await store.appendRecords(records);
    expect(await store.textOfRequest("q1")).toEqual({ request: texts[1], response: null });
    expect(await store.textOfRequest("q2")).toEqual({ request: texts[2], response: "done" });
    await store.appendRecords(spooled([finishedCall("plain", [1], [2])]));
    expect(await store.textOfRequest("plain")).toEqual({ request: null, response: null });
    expect(await store.textOfRequest("unknown")).toBeUndefined();
  });

  it("knows how far a spool has come, and never goes back", async () => {
    expect(await store.ackedSeq("spool")).toBe(0);
    const batch = spooled([finishedCall("q0", [1], [2]), finishedCall("q1", [1], [2])]);
    await store.appendRecords(batch);
    await store.appendRecords(batch.slice(0, 1));
    expect(await store.ackedSeq("spool")).toBe(2);
    expect(await store.ackedSeq("other")).toBe(0);
  });

  it("takes a prompt of 200,000 tokens", async () => {
    const prompt = Int32Array.from({ length: 200_000 }, (_, i) => (i * 7919) % 151_936);
    await store.appendRecords(spooled([finishedCall("q0", prompt, [1])]));
    expect((await store.callsOfAttempt("r1", "r1-0"))[0]?.promptIds).toEqual(prompt);
  });
});

describe("a database", () => {
  it("keeps its identity and its records over a reopening, and another file has another", async () => {
    const path = join(directory.path, "again.db");
    const first = await openDatabase({ path, migrations });
    const store = await openCallStore(first);
    await store.appendRecords(spooled([finishedCall("q0", [1], [2])]));
    await first.destroy();
    const second = await openDatabase({ path, migrations });
    const reopened = await openCallStore(second);
    expect(reopened.storeId).toBe(store.storeId);
    expect((await reopened.callCounts()).requests).toBe(1);
    await second.destroy();
    const other = await openDatabase({ path: ":memory:", migrations });
    expect((await openCallStore(other)).storeId).not.toBe(store.storeId);
    await other.destroy();
  });

  it("explains a path that cannot be opened and a file that is no database", async () => {
    await expect(openDatabase({ path: "/dev/null/x.db", migrations })).rejects.toMatchObject({
      reason: "database-unusable",
      origin: "user",
    });
    const path = join(directory.path, "text.db");
    writeFileSync(
      path,
      "this is not a database, but it is long enough to be looked at ".repeat(20),
    );
    await expect(openDatabase({ path, migrations })).rejects.toMatchObject({
      reason: "database-unusable",
    });
  });
});
