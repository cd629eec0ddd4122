import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { routeRequest } from "./route-request.ts";

describe("routes", () => {
  it.each([
    ["POST", "/v1/chat/completions", { kind: "call", dialect: "chat", query: "" }],
    ["POST", "/v1/completions", { kind: "call", dialect: "completions" }],
    ["POST", "/v1/responses", { kind: "call", dialect: "responses" }],
    [
      "POST",
      "/v1/messages?beta=true",
      { kind: "call", dialect: "messages", path: "/v1/messages", query: "?beta=true" },
    ],
    ["POST", "/v1/messages/count_tokens?beta=true", { kind: "count-tokens" }],
    ["GET", "/v1/models", { kind: "passthrough", path: "/v1/models" }],
    ["GET", "/v1/models/toy", { kind: "passthrough", path: "/v1/models/toy" }],
    ["HEAD", "/", { kind: "probe" }],
    ["HEAD", "/r/tok", { kind: "probe" }],
    ["GET", "/healthz", { kind: "control" }],
    ["GET", "/metrics", { kind: "control" }],
    [
      "POST",
      "/r/a%2Fb/v1/messages",
      { kind: "call", path: "/v1/messages", identity: { kind: "token", token: "a/b" } },
    ],
    [
      "POST",
      "/proxy/rollout/r1/attempt/0/mode/val/openai/v1/chat/completions",
      {
        kind: "call",
        path: "/v1/chat/completions",
        identity: { kind: "rollout", rolloutId: "r1", attemptId: "0", mode: "eval" },
      },
    ],
    [
      "POST",
      "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/completions",
      { kind: "call", dialect: "completions", identity: { kind: "rollout", mode: "train" } },
    ],
    ["POST", "/proxy/rollout/r1/attempt/0/mode/other/openai/v1/completions", { status: 404 }],
    ["POST", "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/responses", { status: 404 }],
    ["GET", "/v1/chat/completions", { kind: "refused", status: 405 }],
    [
      "POST",
      "http://x:1/v1/completions?a=b",
      { kind: "call", path: "/v1/completions", query: "?a=b" },
    ],
    ["HEAD", "HTTP://x", { kind: "probe" }],
    ["GET", "/v1/models/Qwen/Qwen2.5-0.5B", { kind: "passthrough" }],
    ["GET", "/v1/models/../../is_paused", { kind: "refused", status: 404 }],
    ["GET", "/v1/models/%2e%2E/x", { kind: "refused", status: 404 }],
    ["GET", "/v1/models/a%2f..%5cx", { kind: "refused", status: 404 }],
    ["GET", "/v1/models/.", { kind: "refused", status: 404 }],
    ["POST", "/r//v1/chat/completions", { kind: "refused", status: 404 }],
    ["POST", "/v1/embeddings", { kind: "refused", status: 404, dialect: "chat" }],
    ["POST", "/v1/messages/batches", { kind: "refused", status: 404, dialect: "messages" }],
    ["DELETE", "/v1/responses/x", { kind: "refused", status: 404, dialect: "responses" }],
  ])("%s %s", (method, url, expected) => {
    expect(routeRequest(method, url)).toMatchObject(expected);
  });

  it("is total, and calls an engine only under a known path", () => {
    fc.assert(
      fc.property(fc.constantFrom("GET", "POST", "PUT"), fc.string(), (method, text) => {
        for (const url of [text, `/${text}`, `/r/${text}`, `/v1/${text}`, `/proxy/${text}`]) {
          const route = routeRequest(method, url);
          if (route.kind === "call") expect(route.path).toMatch(/^\/v1\/[a-z/]+$/);
        }
      }),
    );
  });
});
