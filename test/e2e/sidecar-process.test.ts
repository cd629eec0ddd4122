import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from "node:fs";
import { request as httpRequest } from "node:http";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Readable } from "node:stream";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { pieces, tokenId } from "../conformance/toy-tokenizer.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { until } from "./sidecar-support.ts";

const root = resolve(import.meta.dirname, "../..");
const cli = join(root, "bin/outrigger.js");
/** Made up; joined so that no scanner takes offence. */
const secret = ["sk", "proj", "abcdefghijklmnopqrstuvwxyz0123456789"].join("-");
let folder: string;
let bundle: string;
let engine: ScriptedEngine;
const children: ChildProcess[] = [];

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "outrigger-sidecar-"));
  bundle = join(folder, "sidecar.mjs");
  execFileSync(process.execPath, [join(root, "scripts/bundle-sidecar.mjs"), bundle]);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));
beforeEach(async () => {
  engine = await startScriptedEngine(vllmScript());
});
afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  await engine.close();
});

interface Running {
  readonly child: ChildProcess;
  readonly captureFile: string;
  readonly exit: Promise<number | NodeJS.Signals | null>;
  readonly stderr: () => string;
  readonly url: Promise<string>;
}

let fileCount = 0;

/** The bundle as a container would run it. */
function run(args: readonly string[], env: Readonly<Record<string, string>> = {}): Running {
  fileCount += 1;
  const captureFile = join(folder, `calls-${fileCount}.jsonl`);
  const child = spawn(
    process.execPath,
    [bundle, "--port", "0", "--capture-file", captureFile, ...args],
    { env: { PATH: process.env["PATH"] ?? "", ...env }, stdio: ["pipe", "pipe", "pipe"] },
  );
  children.push(child);
  let stderr = "";
  child.stderr?.on("data", (text: Buffer) => {
    stderr += text.toString();
  });
  const exit = new Promise<number | NodeJS.Signals | null>((settle) => {
    child.once("exit", (code, signal) => settle(code ?? signal));
  });
  const url = new Promise<string>((settle, reject) => {
    child.stdout?.once("data", (line: Buffer) =>
      settle((JSON.parse(line.toString()) as { url: string }).url),
    );
    child.once("exit", () => reject(new Error(stderr)));
  });
  url.catch(() => undefined);
  return { child, captureFile, exit, stderr: () => stderr, url };
}

const start = (...args: string[]): Running => run(["--engine", `${engine.url}/v1`, ...args]);

function post(url: string, stream = false, content = "x"): Promise<string> {
  return new Promise((settle, reject) => {
    const outgoing = httpRequest(`${url}/v1/chat/completions`, { method: "POST" }, (response) => {
      const parts: Buffer[] = [];
      response.on("data", (part: Buffer) => parts.push(part));
      response.on("end", () => settle(Buffer.concat(parts).toString()));
      response.on("error", reject);
    });
    outgoing.on("error", reject);
    outgoing.end(JSON.stringify({ model: "toy", stream, messages: [{ role: "user", content }] }));
  });
}

function records(file: string): Record<string, unknown>[] {
  const lines = readFileSync(file, "utf8").trim().split("\n");
  return lines.filter((line) => line !== "").map((line) => JSON.parse(line));
}

describe("the sidecar without a controller", () => {
  it("serves, writes whole records as JSON lines, and says when it is ready", async () => {
    const running = start("--rollout-id", "mine");
    const url = await running.url;
    await until(() => engine.requests.length >= 3);
    for (let ready = false; !ready; ) ready = (await fetch(`${url}/readyz`)).status === 200;
    await post(url);
    await post(url, true);
    const counts = await (await fetch(`${url}/metrics`)).text();
    expect(counts).toMatch(/^outrigger_sidecar_calls_total\{.*outcome="delivered".*\} 1$/m);
    running.child.kill("SIGTERM");
    expect(await running.exit).toBe(0);
    const calls = records(running.captureFile);
    expect(calls).toHaveLength(2);
    for (const call of calls) {
      expect(call).toMatchObject({ type: "call", rolloutId: "mine", delivered: true });
      const { responseIds, logprobs } = call as { responseIds: number[]; logprobs: number[] };
      expect(responseIds.length).toBeGreaterThan(0);
      expect(logprobs.length).toBe(responseIds.length);
      expect(call).not.toHaveProperty("requestText");
    }
    expect(running.stderr()).not.toContain("unhandled");
    const samples = execFileSync(process.execPath, [cli, "assemble", running.captureFile], {
      env: { ...process.env, OUTRIGGER_SOURCE: "1" },
    });
    const rows = samples.toString().trim().split("\n");
    expect(rows.map((row) => JSON.parse(row))).toMatchObject([
      { rolloutId: "mine" },
      { rolloutId: "mine" },
    ]);
  });

  it("writes text only when told to, and then without secrets", async () => {
    const running = start("--rollout-id", "mine", "--capture-text");
    const url = await running.url;
    await until(() => engine.requests.length >= 3);
    await post(url, false, `the key is ${secret}`);
    // The answer says it too: it comes in pieces, none of which is the secret.
    engine.setScript(vllmScript({ answer: () => ({ content: `as you say, ${secret} it is` }) }));
    const said = await post(url, true, `and the key is ${secret}`);
    expect(said).not.toContain(secret);
    running.child.kill("SIGTERM");
    expect(await running.exit).toBe(0);
    const text = readFileSync(running.captureFile, "utf8");
    expect(text).toContain("the key is [redacted:");
    expect(text).toContain("as you say, [redacted:");
    expect(text).not.toContain("abcdefghijklmnop");
    // What is trained on is what was sampled.
    const [, call] = records(running.captureFile) as { responseIds: number[] }[];
    const sampled = pieces(`as you say, ${secret} it is`).map(tokenId);
    expect(call?.responseIds.slice(0, -1)).toEqual(sampled);
  });

  it("SIGTERM lets a running call end, and takes no new one", async () => {
    let release: () => void = () => undefined;
    const held = new Promise<void>((settle) => {
      release = settle;
    });
    const running = start();
    const url = await running.url;
    await until(() => engine.requests.length >= 3);
    engine.setScript(vllmScript({ beforeAnswer: held }));
    const before = engine.requests.length;
    const call = post(url);
    await until(() => engine.requests.length > before);
    running.child.kill("SIGTERM");
    await until(() => running.stderr().includes("draining"));
    await expect(post(url)).rejects.toThrow();
    release();
    expect(await call).toContain("choices");
    expect(await running.exit).toBe(0);
    expect(records(running.captureFile)).toHaveLength(1);
  });

  it("after the grace time running calls are broken off, and recorded", async () => {
    const running = run(["--engine", `${engine.url}/v1`], { OUTRIGGER_SIDECAR_GRACE_MS: "100" });
    const url = await running.url;
    await until(() => engine.requests.length >= 3);
    engine.setScript(vllmScript({ beforeAnswer: new Promise(() => {}) }));
    const before = engine.requests.length;
    const call = post(url);
    call.catch(() => undefined);
    await until(() => engine.requests.length > before);
    running.child.kill("SIGTERM");
    await expect(call).rejects.toThrow();
    expect(await running.exit).toBe(0);
    expect(records(running.captureFile)).toMatchObject([
      { delivered: false, errorReason: "shutting-down" },
    ]);
  });

  it("a second signal ends it at once", async () => {
    const running = start();
    const url = await running.url;
    await until(() => engine.requests.length >= 3);
    engine.setScript(vllmScript({ beforeAnswer: new Promise(() => {}) }));
    const before = engine.requests.length;
    post(url).catch(() => undefined);
    await until(() => engine.requests.length > before);
    running.child.kill("SIGTERM");
    await until(() => running.stderr().includes("draining"));
    running.child.kill("SIGTERM");
    expect(await running.exit).toBe(143);
  });

  it("ends with its parent when asked to", async () => {
    const running = start("--exit-with-parent");
    await running.url;
    running.child.stdin?.end();
    expect(await running.exit).toBe(0);
  });
});

describe("bad input is told clearly", () => {
  it("a port in use", async () => {
    const other = createServer();
    const port = await new Promise<number>((settle) =>
      other.listen(0, "127.0.0.1", () => settle((other.address() as { port: number }).port)),
    );
    const running = start("--port", String(port));
    expect(await running.exit).toBe(2);
    expect(running.stderr()).toContain("port-unavailable");
    await new Promise((settle) => other.close(settle));
  });

  it("an unknown key and a wrong value, both at once, with their source", async () => {
    const running = run(["--log-level", "loud"], { OUTRIGGER_SIDECAR_KEEP_ALIVE_MS: "soon" });
    expect(await running.exit).toBe(2);
    expect(running.stderr()).toMatch(/logLevel.*from flag/s);
    expect(running.stderr()).toMatch(/keepAliveMs.*from environment/s);
  });

  it("listening beyond loopback without a controller", async () => {
    const running = start("--host", "0.0.0.0");
    expect(await running.exit).toBe(2);
    expect(running.stderr()).toContain("exposed-without-identity");
  });

  it("a capture file in no folder", async () => {
    const running = start("--capture-file", join(folder, "none", "calls.jsonl"));
    expect(await running.exit).toBe(2);
    expect(running.stderr()).toContain("capture-file-unwritable");
  });

  it("records with two destinations", async () => {
    const running = start("--capture-file", join(folder, "c.jsonl"), "--controller", "127.0.0.1:9");
    expect(await running.exit).toBe(2);
    expect(running.stderr()).toContain("records-with-two-destinations");
  });

  it("--print-config shows values, sources, and no secret", () => {
    const text = execFileSync(process.execPath, [bundle, "--print-config", "--port", "9"], {
      env: { PATH: process.env["PATH"] ?? "", OUTRIGGER_SIDECAR_CONTROLLER_TOKEN: "hush" },
      encoding: "utf8",
    });
    expect(text).toContain("port = 9  (flag)");
    expect(text).toContain("controller.token = ***  (environment)");
    expect(text).not.toContain("hush");
  });
});

it("the image's file says its version without a package.json beside it", () => {
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
    version: string;
  };
  const printed = execFileSync(process.execPath, [bundle, "--version"], { encoding: "utf8" });
  expect(printed.trim()).toBe(version);
});

it("the image's file runs as a user that may write to its spool only", async () => {
  const place = mkdtempSync(join(tmpdir(), "outrigger-image-"));
  const spool = join(place, "spool");
  mkdirSync(spool);
  copyFileSync(bundle, join(place, "sidecar.mjs"));
  const isRoot = process.getuid?.() === 0;
  if (isRoot) chownSync(spool, 65_532, 65_532);
  chmodSync(place, 0o555);
  const flags = Object.entries({
    port: "0",
    engine: `${engine.url}/v1`,
    "rollout-id": "r1",
    controller: "127.0.0.1:9",
    "spool-dir": spool,
    "log-level": "silent",
  }).flatMap(([name, value]) => [`--${name}`, value]);
  const child = spawn(process.execPath, [join(place, "sidecar.mjs"), ...flags], {
    cwd: place,
    env: { OUTRIGGER_SIDECAR_GRACE_MS: "0" },
    stdio: ["ignore", "pipe", "inherit"],
    ...(isRoot ? { uid: 65_532, gid: 65_532 } : {}),
  });
  children.push(child);
  try {
    const [line] = (await once(child.stdout as Readable, "data")) as [Buffer];
    await post((JSON.parse(line.toString()) as { url: string }).url);
    await until(() => readdirSync(spool).some((name) => name.endsWith(".seg")));
    child.kill("SIGTERM");
    expect(await once(child, "exit")).toEqual([0, null]);
    expect(readdirSync(place).sort()).toEqual(["sidecar.mjs", "spool"]);
  } finally {
    chmodSync(place, 0o755);
    rmSync(place, { recursive: true, force: true });
  }
});

it("the image's file is one file", () => {
  expect(existsSync(bundle)).toBe(true);
  const dockerfile = readFileSync(join(root, "Dockerfile.sidecar"), "utf8");
  expect(dockerfile).toMatch(/USER \d+/);
});
