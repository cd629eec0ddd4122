import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pino } from "pino";
import { afterEach, beforeEach, expect, it } from "vitest";
import { serveSampleStream } from "../../controller/ingest/ingest-server.ts";
import { openCallStore } from "../../controller/store/call-store.ts";
import { migrations } from "../../controller/store/migrations.ts";
import { openDatabase } from "../../controller/store/open-database.ts";
import { openTokenVerifier, signCapability } from "../../runtime/capability-token.ts";
import { generateTokenKeys } from "../../runtime/capability-token-keys.ts";
import { bindGrpcServer, closeGrpcServer, createGrpcServer } from "../../runtime/grpc-server.ts";
import { startScriptedEngine } from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";

const root = resolve(import.meta.dirname, "../..");
const keys = generateTokenKeys();
const log = pino({ level: "silent" });
let folder: string;
let child: ChildProcess | undefined;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "outrigger-image-"));
});
afterEach(() => {
  child?.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});

const token = (rolloutId: string, attemptId: string, scope: "call" | "sidecar"): Promise<string> =>
  signCapability(
    { rolloutId, attemptId, scopes: [scope], mode: "train", expiresAtMs: Date.now() + 60_000 },
    keys.privateKeyPem,
  );

it("the image's file has what it loads late: a YAML file, gRPC, tokens, patterns of RE2", async () => {
  const bundle = join(folder, "sidecar.mjs");
  execFileSync(process.execPath, [join(root, "scripts/bundle-sidecar.mjs"), bundle]);
  const engine = await startScriptedEngine(vllmScript());
  const database = await openDatabase({ path: join(folder, "run.db"), migrations });
  const store = await openCallStore(database);
  const server = createGrpcServer();
  const ingest = serveSampleStream(server, {
    store,
    verifier: await openTokenVerifier(keys.publicKeyPem),
    tokenPublicKeyPem: keys.publicKeyPem,
    capture: {
      captureText: true,
      redactionPatterns: ["needle-[0-9]+"],
      trainOverrides: {},
      evalOverrides: {},
      requireCanary: true,
      deduplicateRetries: true,
    },
    policy: { model: "toy", version: 1, endpoints: [{ url: `${engine.url}/v1`, apiKey: "" }] },
    log,
  });
  const port = await bindGrpcServer(server, { host: "127.0.0.1", port: 0 });
  const file = join(folder, "sidecar.yaml");
  writeFileSync(file, `# of the test\nspool: { dir: ${join(folder, "spool")} }\nport: 0\n`);
  child = spawn(
    process.execPath,
    [bundle, "-c", file, "--controller", `127.0.0.1:${port}`, "--log-level", "warn"],
    {
      env: { OUTRIGGER_SIDECAR_CONTROLLER_TOKEN: await token("*", "*", "sidecar") },
      stdio: ["ignore", "pipe", "inherit"],
    },
  );
  try {
    const [line] = (await once(child.stdout as NodeJS.ReadableStream, "data")) as [Buffer];
    const { url } = JSON.parse(line.toString()) as { url: string };
    await ingest.waitForSidecars(1);
    for (let ready = false; !ready; ) ready = (await fetch(`${url}/readyz`)).status === 200;
    const authorization = `Bearer ${await token("r1", "a0", "call")}`;
    const body = { model: "toy", messages: [{ role: "user", content: "a needle-42 in hay" }] };
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { authorization },
      body: JSON.stringify(body),
    });
    expect(response.status).toBe(200);
    await ingest.settle({ timeoutMs: 10_000 });
    const [call] = await store.callsOfAttempt("r1", "a0");
    expect(call).toMatchObject({ complete: true, delivered: true, policyVersion: 1 });
    const text = JSON.stringify(await store.textOfRequest(call?.requestId ?? ""));
    expect(text).toContain("in hay");
    expect(text).not.toContain("needle-42");
  } finally {
    child.kill("SIGKILL");
    await ingest.close();
    await closeGrpcServer(server, 100);
    await database.destroy();
    await engine.close();
  }
}, 30_000);
