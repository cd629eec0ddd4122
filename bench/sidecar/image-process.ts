import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

export interface ImageProcess {
  readonly process: ChildProcess;
  readonly port: number;
  /** From the start of the process to its line that says that it listens. */
  readonly listeningMs: number;
  /** Resident memory now, in bytes; Linux only. */
  rssBytes(): number;
  kill(): Promise<void>;
  /** Lets it drain and end by itself. */
  stop(): Promise<void>;
}

/** The file that the image holds, bundled anew into the folder. */
export function bundleImage(folder: string): string {
  const bundle = join(folder, "image.mjs");
  execFileSync(process.execPath, [join(root, "scripts/bundle-sidecar.mjs"), bundle], {
    stdio: "inherit",
  });
  return bundle;
}

/** Starts that file with Node's flags and the variables of `Dockerfile.sidecar`. */
export async function startImage(
  bundle: string,
  args: readonly string[],
  moreNodeFlags: readonly string[] = [],
): Promise<ImageProcess> {
  const { nodeFlags, environment } = imageSettings();
  const startedMs = performance.now();
  const child = spawn(
    process.execPath,
    [...nodeFlags, ...moreNodeFlags, bundle, "--port", "0", "--log-level", "silent", ...args],
    { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, ...environment } },
  );
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const line = await new Promise<Buffer>((resolve, reject) => {
    child.stdout.once("data", resolve);
    child.once("exit", (code) => reject(new Error(`the sidecar ended with ${code}`)));
  });
  const listeningMs = performance.now() - startedMs;
  const { url } = JSON.parse(line.toString()) as { url: string };
  return {
    process: child,
    port: Number(new URL(url).port),
    listeningMs,
    rssBytes: () => rssBytes(child.pid as number),
    kill: () => {
      child.kill("SIGKILL");
      return exited;
    },
    stop: () => {
      child.kill("SIGTERM");
      return exited;
    },
  };
}

/** User and system time that the process has used, in microseconds, to 10 ms; Linux only. */
export function cpuMicroseconds(pid: number): number {
  const [, after = ""] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ");
  const fields = after.split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

export function rssBytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
}

function imageSettings(): { nodeFlags: string[]; environment: Record<string, string> } {
  const dockerfile = readFileSync(join(root, "Dockerfile.sidecar"), "utf8");
  const entry = /^ENTRYPOINT (\[.*\])$/m.exec(dockerfile)?.[1] ?? "[]";
  const nodeFlags = (JSON.parse(entry) as string[]).filter((word) => word.startsWith("--"));
  const environment: Record<string, string> = {};
  for (const [, variables] of dockerfile.matchAll(/^ENV (.*)$/gm)) {
    for (const pair of (variables ?? "").split(" ")) {
      const [name = "", value = ""] = pair.split("=");
      // The volume of the container is not here.
      if (name !== "OUTRIGGER_SIDECAR_SPOOL_DIR") environment[name] = value;
    }
  }
  return { nodeFlags, environment };
}
