/**
 * The writer of a spool as a process: `spool <directory> <record bytes>` appends for ever and
 * prints each number once it is kept.
 */
import { writeSync } from "node:fs";
import process from "node:process";
import { sleep } from "../../../runtime/sleep.ts";
import { watchParent } from "../../../runtime/watch-parent.ts";
import { openSpool } from "../../../sidecar/uplink/spool.ts";
import { silentLog as log } from "../../contract/record-path-fixtures.ts";

/** At once, whatever becomes of this process afterwards. */
const say = (line: string): void => void writeSync(1, `${line}\n`);
watchParent(() => process.exit(0));

async function runSpool(directory: string, bytes: number): Promise<void> {
  const spool = openSpool({ directory, log, segmentBytes: 20_000 });
  say(`open ${spool.lastSeq}`);
  for (;;) {
    const outcome = spool.append((seq) => Buffer.from(`${seq}`.padEnd(bytes, ".")));
    say(outcome.kept ? `${outcome.seq}` : `dropped ${outcome.reason}`);
    // Slow enough for the reader of these lines to keep up.
    if (!outcome.kept || outcome.seq % 20 === 0) await sleep(1);
  }
}

const [directory, bytes] = process.argv.slice(2) as [string, string];
await runSpool(directory, Number(bytes));
