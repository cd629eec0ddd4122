import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { defaultFailurePolicy } from "../../core/rollouts/failure-policy.ts";
import type { Capability } from "../../runtime/capability-token.ts";
import { openLog } from "../../runtime/log.ts";
import {
  type Controller,
  type ControllerOptions,
  openController,
  wideCapability,
} from "../open-controller.ts";

const directory = mkdtempSync(join(tmpdir(), "outrigger-api-"));
const now = Date.now();
let controller: Controller;
let admin = "";
const queued: number[] = [];

const open = (over: Partial<ControllerOptions> = {}): Promise<Controller> =>
  openController({
    directory,
    host: "127.0.0.1",
    grpcPort: 0,
    httpPort: 0,
    capture: {},
    failurePolicy: defaultFailurePolicy,
    log: openLog({ level: "silent", process: "test" }),
    now: () => now,
    hooks: {
      onQueued: () => queued.push(1),
      onChanged: () => undefined,
      status: () => Promise.resolve({ name: "mini" }),
    },
    ...over,
  });

beforeAll(async () => {
  controller = await open();
  admin = await controller.sign(wideCapability("admin", now));
});
afterAll(async () => {
  await controller.close();
  rmSync(directory, { recursive: true, force: true });
});

interface Answer {
  readonly status: number;
  // Test code reads what it expects to be there.
  readonly body: Record<string, unknown> & { readonly error?: { readonly reason: string } };
}

async function ask(method: string, path: string, body?: unknown, token = admin): Promise<Answer> {
  const response = await fetch(`${controller.apiUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, body: text === "" ? {} : (JSON.parse(text) as Answer["body"]) };
}

const signFor = (over: Partial<Capability>): Promise<string> =>
  controller.sign({
    rolloutId: "r1",
    attemptId: "r1.1",
    scopes: ["call"],
    mode: "train",
    expiresAtMs: now + 60_000,
    ...over,
  });

describe("the HTTP API", () => {
  it("takes a rollout from its creation through a foreign attempt to its end", async () => {
    const wanted = [{ rolloutId: "r1", input: { question: "a" } }, { input: {} }];
    const created = await ask("POST", "/v1/rollouts", wanted);
    expect(created.status).toBe(201);
    expect(queued.length).toBe(1);
    const again = await ask("POST", "/v1/rollouts", [{ rolloutId: "r1", input: { other: 1 } }]);
    expect(again.body["rollouts"]).toMatchObject([{ rolloutId: "r1", input: { question: "a" } }]);
    const attempt = await ask("POST", "/v1/rollouts/r1/attempts", { owner: "pod-7" });
    expect(attempt).toMatchObject({ status: 201, body: { attemptId: "r1.1" } });
    expect((await ask("POST", "/v1/rollouts/r1/attempts", { owner: "pod-8" })).status).toBe(409);
    const end = { reason: "succeeded", reward: 1 };
    const ended = await ask("POST", "/v1/rollouts/r1/attempts/r1.1/end", end);
    expect(ended.body["rollout"]).toMatchObject({ state: "succeeded", reward: 1 });
    const shown = await ask("GET", "/v1/rollouts/r1");
    expect(shown.body).toMatchObject({
      attempts: [{ attemptId: "r1.1", endReason: "succeeded" }],
      calls: { requests: 0 },
    });
    const listed = await ask("GET", "/v1/rollouts?state=succeeded&state=failed");
    expect(listed.body["rollouts"]).toMatchObject([{ rolloutId: "r1" }]);
  });

  it("invariant 7: the harness's token sets no reward and manages nothing", async () => {
    const call = await signFor({ scopes: ["call"] });
    const reward = "/v1/rollouts/r1/attempts/r1.1/reward";
    expect((await ask("POST", reward, { value: 1 }, call)).status).toBe(403);
    const event = "/v1/rollouts/r1/attempts/r1.1/events";
    expect((await ask("POST", event, { type: "note" }, call)).status).toBe(403);
    const events = await signFor({ scopes: ["call", "event"] });
    expect((await ask("POST", event, { type: "note" }, events)).status).toBe(201);
    const sneaked = await ask("POST", event, { type: "reward", data: { value: 1 } }, events);
    expect(sneaked.status, "an event token cannot post a reward by another name").toBe(403);
    for (const path of ["/v1/run", "/v1/rollouts", "/v1/rollouts/r1", "/v1/sidecars"]) {
      expect((await ask("GET", path, undefined, events)).status, path).toBe(403);
    }
    const stored = await ask("GET", "/v1/rollouts/r1/attempts/r1.1/events");
    expect(stored.body["events"]).toMatchObject([{ eventType: "note" }]);
  });

  it("invariant 7: an administrator's token found on disk sets no reward of the run's own attempts", async () => {
    const run = join(directory, "run");
    const own = await open({ directory: run, tokenKey: "session", ownRunner: "run-1" });
    try {
      const wanted = { mode: "train" as const, purpose: "train", taskId: "t", input: {} };
      await own.service.create([
        { ...wanted, rolloutId: "g0-0" },
        { ...wanted, rolloutId: "g0-1" },
      ]);
      const attemptId = await own.service.startAttempt("g0-0", "run-1", 60_000);
      const token = await own.sign(wideCapability("admin", now));
      const post = async (path: string, body: unknown, bearer = token): Promise<number> => {
        const headers = { authorization: `Bearer ${bearer}`, "content-type": "application/json" };
        const url = `${own.apiUrl}/v1/rollouts/${path}`;
        return (await fetch(url, { method: "POST", headers, body: JSON.stringify(body) })).status;
      };
      const attempt = `g0-0/attempts/${attemptId}`;
      expect(await post(`${attempt}/end`, { reason: "succeeded", reward: 1 })).toBe(409);
      expect(await post(`${attempt}/reward`, { value: 1 })).toBe(409);
      expect(await post(`${attempt}/events`, { type: "turn-reward", data: {} })).toBe(409);
      expect(await post("g0-1/attempts", { owner: "harness" })).toBe(409);
      const { rollout } = await own.service.show("g0-0");
      expect(rollout).toMatchObject({ state: "running" });
      expect(rollout.reward).toBeUndefined();
      const capability = {
        rolloutId: "g0-0",
        attemptId,
        mode: "train",
        scopes: ["reward"],
      } as const;
      const verifier = await own.sign({ ...capability, expiresAtMs: now + 60_000 });
      expect(await post(`${attempt}/reward`, { value: 0.5 }, verifier)).toBe(201);
      expect(existsSync(join(run, "token-key.pem")), "the key is in no file").toBe(false);
    } finally {
      await own.close();
    }
  });

  it("a verifier's token rewards its own attempt only", async () => {
    const own = await signFor({ scopes: ["reward"] });
    const path = "/v1/rollouts/r1/attempts/r1.1/reward";
    expect((await ask("POST", path, { value: 0.5 }, own)).status).toBe(201);
    const other = await signFor({ scopes: ["reward"], attemptId: "r1.2" });
    expect((await ask("POST", path, { value: 0.5 }, other)).status).toBe(403);
    expect((await ask("POST", path, { value: 0.5 }, "nonsense")).body.error?.reason).toBe(
      "token-malformed",
    );
    const late = await signFor({ scopes: ["reward"], expiresAtMs: now - 60_000 });
    expect((await ask("POST", path, { value: 0.5 }, late)).body.error?.reason).toBe(
      "token-expired",
    );
  });

  it.each([
    ["GET", "/v1/rollouts/none", undefined, 404, "rollout-unknown"],
    ["GET", "/v1/requests/none/text", undefined, 404, "request-unknown"],
    ["GET", "/v1/nothing", undefined, 404, "route-unknown"],
    ["POST", "/v1/rollouts", "{", 422, "request-invalid"],
    ["POST", "/v1/rollouts", [{ inptu: {} }], 422, "request-invalid"],
    ["GET", "/v1/rollouts?limit=0", undefined, 422, "request-invalid"],
    ["POST", "/v1/rollouts/none/attempts", { owner: "x" }, 404, "rollout-unknown"],
  ])("%s %s says what is wrong", async (method, path, body, status, reason) => {
    const answer = await ask(method, path, body);
    expect(answer.status).toBe(status);
    expect(answer.body.error?.reason).toBe(reason);
  });

  it("cancels and removes", async () => {
    await ask("POST", "/v1/rollouts", [{ rolloutId: "r9", input: {} }]);
    const cancelled = await ask("POST", "/v1/rollouts/r9/cancel");
    expect(cancelled.body["rollout"]).toMatchObject({ state: "cancelled" });
    expect((await ask("DELETE", "/v1/rollouts/r9")).status).toBe(204);
    expect((await ask("GET", "/v1/rollouts/r9")).status).toBe(404);
  });
});
