import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { OutriggerError } from "../../core/outrigger-error.ts";

/**
 * Keeps a second process out of a spool directory. The lock names its holder by process id and
 * start time, so that one left behind by kill -9 is recognised (a container's process often has
 * the same id every time). Gives the function that unlocks.
 */
export function lockSpool(directory: string): () => void {
  const path = join(directory, "lock");
  const own = describeProcess(process.pid);
  if (own === undefined) throw new Error("cannot read the state of this process");
  const holder = readHolder(path);
  if (holder !== undefined && holder !== own && describeProcess(parseInt(holder, 10)) === holder) {
    throw new OutriggerError(
      "spool-in-use",
      `the spool ${directory} is in use by process ${parseInt(holder, 10)}`,
      { origin: "user", hint: "Give every sidecar a spool directory of its own." },
    );
  }
  if (holder === own && heldHere.has(path)) {
    throw new OutriggerError(
      "spool-in-use",
      `the spool ${directory} is open in this process already`,
      { origin: "user", hint: "Give every sidecar a spool directory of its own." },
    );
  }
  writeFileSync(path, own, { mode: 0o600 });
  heldHere.add(path);
  return () => {
    heldHere.delete(path);
    rmSync(path, { force: true });
  };
}

const heldHere = new Set<string>();

function readHolder(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}

/** `<pid> <start time>`, or undefined when there is no such process. */
function describeProcess(pid: number): string | undefined {
  if (!Number.isInteger(pid)) return undefined;
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The name in parentheses may hold anything; the state is the first field after it, the start
    // time the 20th.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    // A zombie has ended: only its parent has not noticed.
    if (fields[0] === "Z" || fields[0] === "X") return undefined;
    return `${pid} ${fields[19]}`;
  } catch {
    // Without /proc the id alone has to do.
    return existsSync("/proc/self/stat") || !isRunning(pid) ? undefined : `${pid}`;
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
