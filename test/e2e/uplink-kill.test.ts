import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import { build } from "esbuild";
import { afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { openCallStore } from "../../controller/store/call-store.ts";
import { migrations } from "../../controller/store/migrations.ts";
import { openDatabase } from "../../controller/store/open-database.ts";
import { seededRandom } from "../../core/assembly/testing/random.ts";
import { openSpool } from "../../sidecar/uplink/spool.ts";
import {
  silentLog,
  temporaryDirectory,
  trajectoryCall,
  trajectoryTurns,
} from "../contract/record-path-fixtures.ts";

/** A child with its lines; killed at the end of the test whatever happens. */
class Child {
  readonly lines: string[] = [];
  readonly process: ChildProcess;
  readonly #closed: Promise<unknown>;
  #isClosed = false;
  #onChange: (() => void) | undefined;

  constructor(started: ChildProcess) {
    this.process = started;
    const reader = createInterface({ input: this.process.stdout as NodeJS.ReadableStream });
    reader.on("line", (line) => {
      this.lines.push(line);
      this.#onChange?.();
    });
    const exited = new Promise((resolve) => this.process.once("exit", resolve));
    const read = new Promise<void>((resolve) => {
      reader.once("close", () => {
        this.#isClosed = true;
        this.#onChange?.();
        resolve();
      });
    });
    this.#closed = Promise.all([exited, read]);
    children.push(this);
  }

  /** The first line for which `test` holds, past or future. */
  async line(test: (line: string) => boolean): Promise<string> {
    for (let at = 0; ; at += 1) {
      while (at >= this.lines.length) {
        if (this.#isClosed) throw new Error(`ended; last: ${this.lines.slice(-3).join(" | ")}`);
        await new Promise<void>((resolve) => {
          this.#onChange = resolve;
        });
      }
      if (test(this.lines[at] as string)) return this.lines[at] as string;
    }
  }

  /** kill -9, and everything that it said before it died. */
  async kill(): Promise<readonly string[]> {
    this.process.kill("SIGKILL");
    await this.#closed;
    return this.lines;
  }
}

/** Bundled, so that a child starts in a fraction of the time. */
const scripts = join(import.meta.dirname, "../../.outrigger/test/record-path");
beforeAll(async () => {
  const names = ["controller", "sidecar", "spool"];
  await build({
    entryPoints: names.map((name) => join(import.meta.dirname, "record-path", `${name}.ts`)),
    outdir: scripts,
    bundle: true,
    platform: "node",
    format: "esm",
    packages: "external",
  });
});

function start(script: string, ...args: (string | number)[]): Child {
  return startLimited("unlimited", script, ...args);
}

/** A child that cannot write a file longer than `fileKiB`: the kernel refuses it like a full disk. */
function startLimited(
  fileKiB: number | "unlimited",
  script: string,
  ...args: (string | number)[]
): Child {
  const command = [process.execPath, join(scripts, `${script}.js`), ...args.map(String)];
  return new Child(
    spawn("bash", ["-c", `ulimit -f ${fileKiB}; exec "$@"`, "bash", ...command], {
      stdio: ["pipe", "pipe", "inherit"],
    }),
  );
}

const children: Child[] = [];
let directory: ReturnType<typeof temporaryDirectory>;
beforeEach(() => {
  directory = temporaryDirectory("kill");
});
afterEach(async () => {
  for (const child of children.splice(0)) await child.kill();
  directory.remove();
});

const isAtLeast =
  (count: number) =>
  (line: string): boolean =>
    Number(line) >= count;

async function startController(port = 0): Promise<{ child: Child; port: number }> {
  const child = start("controller", port, directory.path);
  const line = await child.line((l) => l.startsWith("port "));
  return { child, port: Number(line.slice(5)) };
}

/** Every call that a sidecar said it kept is in the store once, ids and all. */
async function expectAllStored(name: string, count: number): Promise<void> {
  const database = await openDatabase({ path: join(directory.path, "run.db"), migrations });
  const store = await openCallStore(database);
  try {
    expect(await store.callCounts()).toMatchObject({ requests: count, completeCalls: count });
    for (let first = 0; first < count; first += trajectoryTurns) {
      const { rolloutId, attemptId } = trajectoryCall(name, first);
      const calls = await store.callsOfAttempt(rolloutId, attemptId);
      const sent = calls.map((_, i) => trajectoryCall(name, first + i));
      expect(calls.map((c) => c.requestId)).toEqual(sent.map((c) => c.requestId));
      expect(calls.map((c) => c.promptIds)).toEqual(sent.map((c) => c.promptIds));
      expect(calls.map((c) => c.logprobs)).toEqual(sent.map((c) => c.choices[0]?.logprobs));
    }
  } finally {
    await database.destroy();
  }
}

describe("kill -9 of the writer of a spool", () => {
  it("loses no record that was said to be kept, at any of 5 random moments", async () => {
    const random = seededRandom(11).next;
    const path = join(directory.path, "spool");
    let last = 0;
    for (let round = 0; round < 5; round += 1) {
      const writer = start("spool", path, 10 + Math.floor(random() * 5000));
      expect(await writer.line((l) => l.startsWith("open"))).toBe(`open ${last}`);
      await writer.line(isAtLeast(last + 1 + Math.floor(random() * 400)));
      const said = (await writer.kill()).slice(1).map(Number);
      expect(said).toEqual(said.map((_, i) => last + 1 + i));
      const spool = openSpool({ directory: path, log: silentLog, maxTailBytes: 0 });
      // A record may have been written and not said.
      expect([0, 1]).toContain(spool.lastSeq - (said.at(-1) as number));
      const found: number[][] = [];
      for (let frames = await spool.readFrom(1); frames.length > 0; ) {
        for (const { seq, payload } of frames)
          found.push([seq, Number.parseInt(Buffer.from(payload).toString(), 10)]);
        frames = await spool.readFrom((found.at(-1)?.[0] as number) + 1);
      }
      expect(found).toEqual(Array.from({ length: spool.lastSeq }, (_, i) => [i + 1, i + 1]));
      last = spool.lastSeq;
      spool.close();
    }
  });
});

describe("a disk that becomes full in the middle of a record", () => {
  it("is a typed outcome; what was kept before is whole, and what comes after it too", async () => {
    const path = join(directory.path, "spool");
    const writer = startLimited(10, "spool", path, 3000);
    expect(await writer.line((l) => l.startsWith("dropped"))).toBe("dropped disk-full");
    const kept = (await writer.kill()).map(Number).filter((n) => n > 0);
    expect(kept).toEqual([1, 2, 3]);
    const spool = openSpool({ directory: path, log: silentLog, maxTailBytes: 0 });
    expect(spool.append((seq) => Buffer.from(`${seq}`))).toEqual({ kept: true, seq: 4 });
    const found = [...(await spool.readFrom(1)), ...(await spool.readFrom(4))];
    expect(found.map((f) => Number.parseInt(Buffer.from(f.payload).toString(), 10))).toEqual([
      1, 2, 3, 4,
    ]);
    spool.close();
  });
});

describe("kill -9 along the record path", () => {
  it("of the controller, between commit and ack too: every call arrives once", async () => {
    const count = 2000;
    const random = seededRandom(5).next;
    let controller = await startController();
    const { port } = controller;
    const sidecar = start("sidecar", port, directory.path, "a", 0, count);
    for (let at = 300; at < count; at += 300 + Math.floor(random() * 600)) {
      await sidecar.line(isAtLeast(at));
      await controller.child.kill();
      controller = await startController(port);
    }
    expect(await sidecar.line((l) => l.startsWith("closed"))).toBe("closed 0");
    await controller.child.kill();
    await expectAllStored("a", count);
  });

  it("of the sidecar, at random moments: what it kept arrives once, and it goes on", async () => {
    const random = seededRandom(9).next;
    const { child, port } = await startController();
    let next = 0;
    for (let round = 0; round < 3; round += 1) {
      const sidecar = start("sidecar", port, directory.path, "b", next, 100_000);
      await sidecar.line(isAtLeast(next + 1 + Math.floor(random() * 300)));
      const lines = await sidecar.kill();
      // The call after the last one said may have been kept too: recorded again, it is a duplicate.
      next = Number(lines.at(-1)) + 1;
    }
    const last = start("sidecar", port, directory.path, "b", next, 50);
    expect(await last.line((l) => l.startsWith("closed"))).toBe("closed 0");
    await child.kill();
    await expectAllStored("b", next + 50);
  });

  it("controller away for long and the sidecar restarted in between: every call arrives once", async () => {
    const controller = await startController();
    const { port } = controller;
    const first = start("sidecar", port, directory.path, "c", 0, 300);
    await first.line(isAtLeast(100));
    await controller.child.kill();
    await first.line((l) => l === "recorded");
    await first.kill();
    const second = start("sidecar", port, directory.path, "c", 300, 300);
    await second.line((l) => l === "recorded");
    // Long enough for the backoff to reach its limit only when asked for.
    await new Promise((resolve) => setTimeout(resolve, Number(process.env.OUTAGE_MS ?? 0)));
    const back = await startController(port);
    expect(await second.line((l) => l.startsWith("closed"))).toBe("closed 0");
    await back.child.kill();
    await expectAllStored("c", 600);
  });
});
