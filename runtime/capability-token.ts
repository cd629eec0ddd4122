import { createHash } from "node:crypto";
import { importPKCS8, importSPKI, errors as joseErrors, jwtVerify, SignJWT } from "jose";
import * as z from "zod";
import { OutriggerError } from "../core/outrigger-error.ts";

/** What a token may do; nothing implies anything else. */
export const capabilityScopes = ["call", "event", "reward", "admin", "sidecar"] as const;
export type CapabilityScope = (typeof capabilityScopes)[number];

/**
 * What a token says. Example: `{ rolloutId: "r7", attemptId: "r7-0", scopes: ["call"],
 * mode: "train", expiresAtMs: 1767225600000 }`. A sidecar that serves many rollouts and an
 * administrator carry `rolloutId: "*", attemptId: "*"`.
 */
export interface Capability {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly scopes: readonly CapabilityScope[];
  /** Which sampling overrides apply to the calls. */
  readonly mode: "train" | "eval";
  readonly expiresAtMs: number;
}

export type TokenRefusal = "malformed" | "bad-signature" | "expired" | "wrong-claims";
export type TokenVerdict =
  | { readonly ok: true; readonly capability: Capability }
  | { readonly ok: false; readonly reason: TokenRefusal };

export interface TokenVerifier {
  /** Never throws on a bad token: the verdict says why. */
  verify(token: string): Promise<TokenVerdict>;
  /** The verdict where it is known without checking a signature, for the hot path. */
  peek(token: string): TokenVerdict | undefined;
}

const issuer = "outrigger";
const claimsSchema = z.strictObject({
  iss: z.literal(issuer),
  exp: z.number(),
  rid: z.string().min(1),
  aid: z.string().min(1),
  scp: z.array(z.enum(capabilityScopes)),
  mod: z.enum(["train", "eval"]),
});

/**
 * Signs a capability as a compact JWT (RFC 7519) with Ed25519 (RFC 8037). The expiry is kept in
 * whole seconds, rounded up.
 * @param privateKeyPem PKCS #8 PEM of an Ed25519 key
 */
export async function signCapability(
  capability: Capability,
  privateKeyPem: string,
): Promise<string> {
  return (await openTokenSigner(privateKeyPem))(capability);
}

/** `signCapability` with the key read once, for a process that signs many. */
export async function openTokenSigner(
  privateKeyPem: string,
): Promise<(capability: Capability) => Promise<string>> {
  const key = await importPrivateKey(privateKeyPem);
  return ({ rolloutId, attemptId, scopes, mode, expiresAtMs }) =>
    new SignJWT({ rid: rolloutId, aid: attemptId, scp: scopes, mod: mode })
      .setProtectedHeader({ alg: "EdDSA" })
      .setIssuer(issuer)
      .setExpirationTime(Math.ceil(expiresAtMs / 1000))
      .sign(key);
}

/**
 * Checks tokens against one public key. Good tokens are remembered (the last `cacheSize`), so that
 * the cost of a signature is paid once per rollout and not once per call; bad ones are not, so that
 * a flood of them cannot push the good ones out.
 */
export async function openTokenVerifier(
  publicKeyPem: string,
  options: { readonly cacheSize?: number; readonly now?: () => number } = {},
): Promise<TokenVerifier> {
  const { cacheSize = 4096, now = Date.now } = options;
  const key = await importPublicKey(publicKeyPem);
  const known = new Map<string, Capability>();

  const peek = (token: string): TokenVerdict | undefined => {
    const capability = known.get(token);
    if (capability === undefined) return undefined;
    known.delete(token);
    if (capability.expiresAtMs <= now()) return { ok: false, reason: "expired" };
    known.set(token, capability);
    return { ok: true, capability };
  };
  const remember = (token: string, capability: Capability): void => {
    known.set(token, capability);
    if (known.size <= cacheSize) return;
    const oldest = known.keys().next();
    if (oldest.done !== true) known.delete(oldest.value);
  };
  return {
    peek,
    verify: async (token) => {
      const cached = peek(token);
      if (cached !== undefined) return cached;
      const verdict = await checkSignature(token, key, now());
      if (verdict.ok) remember(token, verdict.capability);
      return verdict;
    },
  };
}

async function checkSignature(
  token: string,
  key: Awaited<ReturnType<typeof importSPKI>>,
  nowMs: number,
): Promise<TokenVerdict> {
  try {
    const { payload } = await jwtVerify(token, key, {
      algorithms: ["EdDSA"],
      currentDate: new Date(nowMs),
    });
    const claims = claimsSchema.safeParse(payload);
    if (!claims.success) return { ok: false, reason: "wrong-claims" };
    const { rid, aid, scp, mod, exp } = claims.data;
    return {
      ok: true,
      capability: {
        rolloutId: rid,
        attemptId: aid,
        scopes: scp,
        mode: mod,
        expiresAtMs: exp * 1000,
      },
    };
  } catch (error) {
    return { ok: false, reason: refusalOf(error) };
  }
}

function refusalOf(error: unknown): TokenRefusal {
  if (error instanceof joseErrors.JWTExpired) return "expired";
  if (error instanceof joseErrors.JWSSignatureVerificationFailed) return "bad-signature";
  if (error instanceof joseErrors.JWTClaimValidationFailed) return "wrong-claims";
  if (error instanceof joseErrors.JOSEAlgNotAllowed) return "bad-signature";
  return "malformed";
}

/** A stable name for a token in logs: never the token itself. */
export function tokenFingerprint(token: string): string {
  return createHash("sha256").update(token).digest("hex").slice(0, 12);
}

async function importPrivateKey(pem: string): Promise<Awaited<ReturnType<typeof importPKCS8>>> {
  try {
    return await importPKCS8(pem, "EdDSA");
  } catch (cause) {
    throw badKey("private", "PKCS #8", cause);
  }
}

async function importPublicKey(pem: string): Promise<Awaited<ReturnType<typeof importSPKI>>> {
  try {
    return await importSPKI(pem, "EdDSA");
  } catch (cause) {
    throw badKey("public", "SPKI", cause);
  }
}

function badKey(which: string, form: string, cause: unknown): OutriggerError {
  return new OutriggerError(
    "token-key-invalid",
    `the ${which} key for capability tokens is not an Ed25519 key in ${form} PEM form`,
    { origin: "user", hint: "Delete the key file to have a new pair made.", cause },
  );
}
