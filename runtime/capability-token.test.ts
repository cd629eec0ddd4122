import { chmodSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SignJWT, UnsecuredJWT } from "jose";
import { afterAll, describe, expect, it } from "vitest";
import {
  type Capability,
  openTokenVerifier,
  signCapability,
  tokenFingerprint,
} from "./capability-token.ts";
import { generateTokenKeys, loadOrCreateTokenKeys } from "./capability-token-keys.ts";

const keys = generateTokenKeys();
const nowMs = 1_767_225_600_000;
const capability: Capability = {
  rolloutId: "r7",
  attemptId: "r7-0",
  scopes: ["call", "event"],
  mode: "eval",
  expiresAtMs: nowMs + 60_000,
};
const verifier = await openTokenVerifier(keys.publicKeyPem, { now: () => nowMs });

describe("capability tokens", () => {
  it("say what was signed", async () => {
    const token = await signCapability(capability, keys.privateKeyPem);
    expect(verifier.peek(token)).toBeUndefined();
    expect(await verifier.verify(token)).toEqual({ ok: true, capability });
    expect(verifier.peek(token)).toEqual({ ok: true, capability });
  });

  const sign = (change: Partial<Capability>, key = keys.privateKeyPem): Promise<string> =>
    signCapability({ ...capability, ...change }, key);
  it.each([
    ["no token at all", "malformed", () => "sk-abc"],
    ["an empty one", "malformed", () => ""],
    ["another key's", "bad-signature", () => sign({}, generateTokenKeys().privateKeyPem)],
    ["an expired one", "expired", () => sign({ expiresAtMs: nowMs - 1000 })],
    ["an unsigned one", "bad-signature", () => new UnsecuredJWT({ rid: "r7" }).encode()],
    [
      "one signed with the public key as a shared secret",
      "bad-signature",
      () =>
        new SignJWT({ rid: "r7" })
          .setProtectedHeader({ alg: "HS256" })
          .sign(new TextEncoder().encode(keys.publicKeyPem)),
    ],
    ["an unknown scope", "wrong-claims", () => sign({ scopes: ["root" as "call"] })],
    ["no rollout", "wrong-claims", () => sign({ rolloutId: "" })],
    [
      "one with its claims changed",
      "bad-signature",
      async () => {
        const [head, , signature] = (await sign({})).split(".");
        const claims = {
          iss: "outrigger",
          exp: 9e9,
          rid: "r8",
          aid: "r8-0",
          scp: ["admin"],
          mod: "train",
        };
        return [head, Buffer.from(JSON.stringify(claims)).toString("base64url"), signature].join(
          ".",
        );
      },
    ],
  ])("%s is refused: %s", async (_, reason, make) => {
    expect(await verifier.verify(await make())).toEqual({ ok: false, reason });
  });

  it("expire in the cache too, and the cache is bounded", async () => {
    let now = nowMs;
    const small = await openTokenVerifier(keys.publicKeyPem, { cacheSize: 2, now: () => now });
    const tokens = await Promise.all(["a", "b", "c"].map((rolloutId) => sign({ rolloutId })));
    for (const token of tokens) await small.verify(token);
    expect(tokens.map((token) => small.peek(token)?.ok)).toEqual([undefined, true, true]);
    now += 60_000;
    expect(small.peek(tokens[2] as string)).toEqual({ ok: false, reason: "expired" });
    expect(await small.verify(tokens[2] as string)).toEqual({ ok: false, reason: "expired" });
  });

  it("have a fingerprint for logs that does not contain them", async () => {
    const token = await sign({});
    expect(tokenFingerprint(token)).toMatch(/^[0-9a-f]{12}$/);
    expect(token).not.toContain(tokenFingerprint(token));
  });

  it("explain a key that is none", async () => {
    await expect(openTokenVerifier("nonsense")).rejects.toMatchObject({
      reason: "token-key-invalid",
    });
    await expect(signCapability(capability, keys.publicKeyPem)).rejects.toMatchObject({
      reason: "token-key-invalid",
    });
  });
});

describe("token keys of a run", () => {
  const directory = mkdtempSync(join(tmpdir(), "outrigger-keys-"));
  afterAll(() => rmSync(directory, { recursive: true }));

  it("are made once, readable by their owner only, and hold after a restart", async () => {
    const first = loadOrCreateTokenKeys(join(directory, "run"));
    const path = join(directory, "run", "token-key.pem");
    expect(statSync(path).mode & 0o777).toBe(0o600);
    chmodSync(path, 0o644);
    const second = loadOrCreateTokenKeys(join(directory, "run"));
    expect(second).toEqual(first);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(readdirSync(join(directory, "run"))).toEqual(["token-key.pem"]);
    const token = await signCapability(capability, first.privateKeyPem);
    const after = await openTokenVerifier(second.publicKeyPem, { now: () => nowMs });
    expect((await after.verify(token)).ok).toBe(true);
  });

  it("say so when the file is damaged", () => {
    writeFileSync(join(directory, "token-key.pem"), "-----BEGIN NONSENSE-----");
    expect(() => loadOrCreateTokenKeys(directory)).toThrow(
      expect.objectContaining({ reason: "token-key-invalid", origin: "user" }),
    );
  });
});
