import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";

/** A pid alone may be reused; with its start time it names one process. */
export interface ProcessIdentity {
  readonly pid: number;
  /** In the system's own words; compared only for equality. */
  readonly startTime: string;
}

/** undefined when there is no such process (any more). */
export function identifyProcess(pid: number): ProcessIdentity | undefined {
  const startTime = process.platform === "linux" ? linuxStartTime(pid) : psStartTime(pid);
  return startTime === undefined ? undefined : { pid, startTime };
}

/**
 * Kills the process group that `identity` leads, if it is still that process.
 *
 * @returns whether there was something to kill
 */
export function killGroup(identity: ProcessIdentity, signal: NodeJS.Signals): boolean {
  if (identifyProcess(identity.pid)?.startTime !== identity.startTime) return false;
  return signalGroup(identity.pid, signal);
}

/** Sends a signal to a whole process group; false when it is gone. */
export function signalGroup(groupId: number, signal: NodeJS.Signals): boolean {
  return signalOne(-groupId, signal);
}

/** Sends a signal to one process; false when it is gone. */
export function signalOne(pid: number, signal: NodeJS.Signals): boolean {
  try {
    process.kill(pid, signal);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
    throw error;
  }
}

/**
 * Pids of other processes whose environment has all of these exactly: what nobody could note down,
 * or what has left its process group. Linux only; elsewhere none.
 */
export function findByEnvironment(wanted: Readonly<Record<string, string>>): readonly number[] {
  if (process.platform !== "linux") return [];
  const entries = Object.entries(wanted).map(([name, value]) => `\0${name}=${value}\0`);
  return readdirSync("/proc")
    .filter((entry) => /^\d+$/.test(entry) && Number(entry) !== process.pid)
    .filter((entry) => {
      const environment = readText(`/proc/${entry}/environ`, "\0");
      return environment !== undefined && entries.every((text) => environment.includes(text));
    })
    .map(Number);
}

/** Field 22 of stat, ticks since boot; the name in field 2 may hold spaces and brackets. */
function linuxStartTime(pid: number): string | undefined {
  const stat = readText(`/proc/${pid}/stat`);
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ");
  // A zombie has ended; only nobody has asked for its exit code yet.
  return fields?.[0] === "Z" || fields?.[0] === "X" ? undefined : fields?.[19];
}

function psStartTime(pid: number): string | undefined {
  try {
    const text = execFileSync("ps", ["-o", "lstart=", "-p", String(pid)], { encoding: "utf8" });
    return text.trim() === "" ? undefined : text.trim();
  } catch {
    return undefined;
  }
}

function readText(path: string, prefix = ""): string | undefined {
  try {
    return prefix + readFileSync(path, "utf8");
  } catch {
    // Gone, or another user's.
    return undefined;
  }
}
