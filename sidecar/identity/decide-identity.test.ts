import { describe, expect, it } from "vitest";
import type { Capability, TokenRefusal } from "../../runtime/capability-token.ts";
import { decideIdentity, type IdentityFacts } from "./decide-identity.ts";

const facts: IdentityFacts = {
  path: { kind: "none" },
  token: undefined,
  binding: undefined,
  session: undefined,
  trustsPath: false,
  bindsSessions: false,
};
const capability: Capability = {
  rolloutId: "r1",
  attemptId: "a1",
  scopes: ["call"],
  mode: "train",
  expiresAtMs: 1,
};
const good = (change: Partial<Capability> = {}): IdentityFacts["token"] => ({
  where: "header",
  verdict: { ok: true, capability: { ...capability, ...change } },
});
const bad = (
  reason: TokenRefusal,
  where: "header" | "path" = "header",
): IdentityFacts["token"] => ({
  where,
  verdict: { ok: false, reason },
});
const proxy = {
  kind: "rollout",
  rolloutId: "r1",
  attemptId: "a2",
  mode: "eval",
} as const;
const binding = { rolloutId: "own", attemptId: "0", mode: "train" } as const;

describe("known", () => {
  it.each<[string, Partial<IdentityFacts>, object]>([
    ["a token", { token: good() }, { rolloutId: "r1", attemptId: "a1", source: "token" }],
    ["a token before a binding", { token: good(), binding }, { rolloutId: "r1" }],
    ["a token's mode, whatever the path says", { token: good(), path: proxy }, { mode: "train" }],
    [
      "a token for every rollout on the proxy path",
      { token: good({ rolloutId: "*", attemptId: "*" }), path: proxy },
      { rolloutId: "r1", attemptId: "a2", mode: "eval" },
    ],
    ["the sidecar's binding", { binding }, { rolloutId: "own", source: "binding" }],
    [
      "a binding beside a credential that is not ours",
      { binding, token: bad("bad-signature") },
      { rolloutId: "own" },
    ],
    [
      "a trusted path",
      { path: { kind: "token", token: "mine" }, trustsPath: true, binding },
      { rolloutId: "mine", source: "path" },
    ],
    ["a trusted proxy path", { path: proxy, trustsPath: true }, { rolloutId: "r1", mode: "eval" }],
    [
      "a session of a deployed agent",
      { session: { sessionId: "codex:1" }, bindsSessions: true },
      { rolloutId: "session:codex:1", sessionId: "codex:1", source: "session" },
    ],
    [
      "a session beside a token only says which session",
      { token: good(), session: { sessionId: "s" } },
      { rolloutId: "r1", sessionId: "s" },
    ],
  ])("%s", (_name, change, identity) => {
    expect(decideIdentity({ ...facts, ...change })).toMatchObject({ kind: "known", identity });
  });
});

describe("refused: never a shared default", () => {
  it.each<[string, Partial<IdentityFacts>, string, number]>([
    ["nothing at all", {}, "unknown-identity", 401],
    [
      "a session when sessions are not bound",
      { session: { sessionId: "s" } },
      "unknown-identity",
      401,
    ],
    ["a foreign credential alone", { token: bad("malformed") }, "token-malformed", 401],
    [
      "an expired token, even with a binding",
      { token: bad("expired"), binding },
      "token-expired",
      401,
    ],
    [
      "a bad token in the path, even with a binding",
      { token: bad("malformed", "path"), binding },
      "token-malformed",
      401,
    ],
    ["a token without the scope", { token: good({ scopes: ["event"] }) }, "token-scope", 403],
    [
      "a token of another rollout on the proxy path",
      { token: good({ rolloutId: "r2" }), path: proxy },
      "token-of-other-rollout",
      403,
    ],
    [
      "a token for every rollout, naming none",
      { token: good({ rolloutId: "*" }) },
      "token-without-rollout",
      403,
    ],
    ["a proxy path with no key", { path: proxy }, "unknown-rollout", 401],
    [
      "a proxy path for another than the bound rollout",
      { path: proxy, binding },
      "unknown-rollout",
      401,
    ],
  ])("%s", (_name, change, reason, status) => {
    expect(decideIdentity({ ...facts, ...change })).toMatchObject({
      kind: "refused",
      refusal: { reason, status },
    });
  });
});
