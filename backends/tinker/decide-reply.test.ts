import { describe, expect, it } from "vitest";
import { decideFuture, decideSend, type HttpOutcome } from "./decide-reply.ts";

const answer = (status: number, body: unknown): HttpOutcome => ({ kind: "answer", status, body });
const broken: HttpOutcome = { kind: "broken", message: "ECONNRESET" };

describe("decideSend: has the server taken the call?", () => {
  it.each<[string, HttpOutcome, string]>([
    ["a future", answer(200, { request_id: "1" }), "accepted"],
    ["a refused connection", { kind: "not-sent", message: "ECONNREFUSED" }, "later"],
    ["a broken connection", broken, "unknown"],
    ["not ready", answer(503, { detail: "Server not ready" }), "later"],
    ["too many requests", answer(429, {}), "later"],
    ["a checkpoint that is still written", answer(425, {}), "later"],
    ["a gateway between", answer(502, "Bad Gateway"), "unknown"],
    ["a gateway that waited", answer(504, ""), "unknown"],
    ["an error after the work began", answer(500, { detail: "x" }), "unknown"],
    ["a time-out", answer(408, {}), "unknown"],
    ["a login page", answer(200, "<html>"), "unknown"],
    ["a wrong body", answer(422, { detail: [{ msg: "Field required" }] }), "refused"],
    ["no such model", answer(404, { detail: "Model not found" }), "refused"],
    ["another body under the same id", answer(409, {}), "refused"],
  ])("%s", (_what, outcome, kind) => {
    expect(decideSend(outcome).kind).toBe(kind);
  });

  it("keeps the status and the server's words", () => {
    expect(decideSend(answer(404, { detail: "Model not found" }))).toEqual({
      kind: "refused",
      status: 404,
      message: "404: Model not found",
    });
    expect(decideSend(answer(422, { detail: [{ msg: "rank" }] }))).toMatchObject({
      message: '422: [{"msg":"rank"}]',
    });
  });
});

describe("decideFuture: what has become of it?", () => {
  const retrieved = { error: "future id result already retrieved", seen_before: true };
  it.each<[string, HttpOutcome, string]>([
    ["a result", answer(200, { path: "tinker://m/weights/a" }), "done"],
    ["SkyRL: not yet", answer(408, { detail: "Timeout waiting for result" }), "wait"],
    ["verl_tinker, Tinker: not yet", answer(200, { type: "try_again" }), "wait"],
    ["SkyRL: unknown", answer(404, { detail: "Future not found" }), "lost"],
    ["expired", answer(410, {}), "lost"],
    ["verl_tinker: read before", answer(200, { ...retrieved, category: "Application" }), "lost"],
    ["verl_tinker: never seen", answer(200, { error: "x", seen_before: false }), "lost"],
    ["SkyRL: failed, with a reason", answer(400, { detail: "loss is NaN" }), "failed"],
    ["SkyRL: failed, without one", answer(500, { detail: "Unknown error" }), "failed"],
    ["verl_tinker: failed", answer(200, { error: "E('x')", category: "Application" }), "failed"],
    ["the server in trouble", answer(500, { detail: "database is locked" }), "again"],
    ["a gateway between", answer(502, "Bad Gateway"), "again"],
    ["too many requests", answer(429, {}), "again"],
    ["a broken connection", broken, "again"],
    ["a login page", answer(200, "<html>"), "again"],
  ])("%s", (_what, outcome, kind) => {
    expect(decideFuture(outcome).kind).toBe(kind);
  });

  it("tells the client's mistakes from the server's", () => {
    const failure = (category: string) => answer(200, { error: "bad", category });
    expect(decideFuture(failure("user"))).toMatchObject({ isUsers: true });
    expect(decideFuture(failure("server"))).toMatchObject({ isUsers: false });
  });
});
