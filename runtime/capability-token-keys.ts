import { createPrivateKey, createPublicKey, generateKeyPairSync } from "node:crypto";
import { chmodSync, linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { OutriggerError } from "../core/outrigger-error.ts";

/** An Ed25519 pair: PKCS #8 and SPKI in PEM form. */
export interface TokenKeys {
  readonly privateKeyPem: string;
  readonly publicKeyPem: string;
}

export function generateTokenKeys(): TokenKeys {
  const { privateKey, publicKey } = generateKeyPairSync("ed25519", {
    privateKeyEncoding: { type: "pkcs8", format: "pem" },
    publicKeyEncoding: { type: "spki", format: "pem" },
  });
  return { privateKeyPem: privateKey, publicKeyPem: publicKey };
}

/**
 * The pair kept in `<directory>/token-key.pem` (mode 0600), made on first use; so tokens that were
 * given out before a restart still hold after it. Two processes that start at once get one pair.
 */
export function loadOrCreateTokenKeys(directory: string): TokenKeys {
  const path = join(directory, "token-key.pem");
  const existing = readKey(path);
  if (existing !== undefined) return existing;
  mkdirSync(directory, { recursive: true });
  const temporary = `${path}.${process.pid}`;
  writeFileSync(temporary, generateTokenKeys().privateKeyPem, { mode: 0o600 });
  try {
    linkSync(temporary, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  } finally {
    rmSync(temporary, { force: true });
  }
  return readKey(path) as TokenKeys;
}

function readKey(path: string): TokenKeys | undefined {
  let privateKeyPem: string;
  try {
    privateKeyPem = readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  chmodSync(path, 0o600);
  try {
    const key = createPrivateKey(privateKeyPem);
    if (key.asymmetricKeyType !== "ed25519") throw new Error(`found ${key.asymmetricKeyType}`);
    const publicKeyPem = createPublicKey(key).export({ type: "spki", format: "pem" }) as string;
    return { privateKeyPem, publicKeyPem };
  } catch (cause) {
    throw new OutriggerError("token-key-invalid", `${path} does not hold an Ed25519 private key`, {
      origin: "user",
      hint: "Restore the file, or delete it to have a new one made (tokens given out before then fail).",
      cause,
    });
  }
}
