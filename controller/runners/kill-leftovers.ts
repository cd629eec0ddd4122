import { sleep } from "../../runtime/sleep.ts";
import { runIdVariable } from "./harness-environment.ts";
import {
  findByEnvironment,
  identifyProcess,
  killGroup,
  type ProcessIdentity,
} from "./process-identity.ts";

const waitMs = 5_000;
const pollMs = 10;

/**
 * Ends what an earlier controller of this run left behind when it was killed: the processes that it
 * noted down, and (on Linux) those it had no time to. Resolves when they are gone.
 *
 * @returns how many there were
 */
export async function killLeftovers(
  runId: string,
  noted: readonly ProcessIdentity[],
): Promise<number> {
  const identities = new Map<number, ProcessIdentity>();
  for (const identity of noted) {
    if (killGroup(identity, "SIGKILL")) identities.set(identity.pid, identity);
    else if (killOne(identity)) identities.set(identity.pid, identity);
  }
  for (const pid of findByEnvironment({ [runIdVariable]: runId })) {
    const identity = identifyProcess(pid);
    if (identity !== undefined && killOne(identity)) identities.set(pid, identity);
  }
  const deadline = Date.now() + waitMs;
  const isLeft = (identity: ProcessIdentity): boolean =>
    identifyProcess(identity.pid)?.startTime === identity.startTime;
  while ([...identities.values()].some(isLeft) && Date.now() < deadline) await sleep(pollMs);
  return identities.size;
}

function killOne(identity: ProcessIdentity): boolean {
  if (identifyProcess(identity.pid)?.startTime !== identity.startTime) return false;
  try {
    process.kill(identity.pid, "SIGKILL");
    return true;
  } catch {
    return false;
  }
}
