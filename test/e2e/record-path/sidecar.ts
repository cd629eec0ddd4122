/**
 * An uplink as a process: `sidecar <port> <directory> <name> <first> <count>` records calls
 * `<name>-<first>`, …, prints the number of each once it is kept, then closes and prints `closed`.
 */
import { writeSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { signCapability } from "../../../runtime/capability-token.ts";
import { loadOrCreateTokenKeys } from "../../../runtime/capability-token-keys.ts";
import { sleep } from "../../../runtime/sleep.ts";
import { watchParent } from "../../../runtime/watch-parent.ts";
import { openUplink, type Uplink } from "../../../sidecar/uplink/uplink.ts";
import { silentLog as log, trajectoryCall } from "../../contract/record-path-fixtures.ts";

/** At once, whatever becomes of this process afterwards. */
const say = (line: string): void => void writeSync(1, `${line}\n`);
watchParent(() => process.exit(0));

/** Waits a little for the controller: records are made while it is there and while it is not. */
async function keepPace(uplink: Uplink): Promise<void> {
  for (let i = 0; i < 20 && uplink.status().unackedRecords > 100; i += 1) await sleep(1);
}

async function runSidecar(
  port: number,
  directory: string,
  name: string,
  first: number,
  count: number,
): Promise<void> {
  const token = await signCapability(
    {
      rolloutId: "*",
      attemptId: "*",
      scopes: ["sidecar"],
      mode: "train",
      expiresAtMs: Date.now() + 3_600_000,
    },
    loadOrCreateTokenKeys(directory).privateKeyPem,
  );
  const uplink = openUplink({
    controllerAddress: `127.0.0.1:${port}`,
    token: () => token,
    hello: () => ({ sidecarId: name, harnessUrl: "http://127.0.0.1", version: "test" }),
    spoolDir: join(directory, `spool-${name}`),
    log,
    handlers: { onWelcome: () => {}, onGate: () => {}, onPolicy: () => {}, onBindings: () => {} },
  });
  for (let i = first; i < first + count; i += 1) {
    const outcome = uplink.record(trajectoryCall(name, i));
    say(outcome.kept ? `${i}` : `dropped ${outcome.reason}`);
    if (i % 20 === 0) await keepPace(uplink);
  }
  say("recorded");
  await uplink.close(120_000);
  say(`closed ${uplink.status().unackedRecords}`);
  process.exit(0);
}

const [port, directory, name, first, count] = process.argv.slice(2) as [
  string,
  string,
  string,
  string,
  string,
];
await runSidecar(Number(port), directory, name, Number(first), Number(count));
