/** Ingest and store as a process: `controller <port> <directory>`. */
import { writeSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { serveSampleStream } from "../../../controller/ingest/ingest-server.ts";
import { openCallStore } from "../../../controller/store/call-store.ts";
import { migrations } from "../../../controller/store/migrations.ts";
import { openDatabase } from "../../../controller/store/open-database.ts";
import { openTokenVerifier } from "../../../runtime/capability-token.ts";
import { loadOrCreateTokenKeys } from "../../../runtime/capability-token-keys.ts";
import { bindGrpcServer, createGrpcServer } from "../../../runtime/grpc-server.ts";
import { watchParent } from "../../../runtime/watch-parent.ts";
import { silentLog as log } from "../../contract/record-path-fixtures.ts";

/** At once, whatever becomes of this process afterwards. */
const say = (line: string): void => void writeSync(1, `${line}\n`);
watchParent(() => process.exit(0));

async function runController(port: number, directory: string): Promise<void> {
  const keys = loadOrCreateTokenKeys(directory);
  const database = await openDatabase({ path: join(directory, "run.db"), migrations });
  const server = createGrpcServer();
  serveSampleStream(server, {
    store: await openCallStore(database),
    verifier: await openTokenVerifier(keys.publicKeyPem),
    tokenPublicKeyPem: keys.publicKeyPem,
    capture: {},
    log,
  });
  say(`port ${await bindGrpcServer(server, { host: "127.0.0.1", port })}`);
}

const [port, directory] = process.argv.slice(2) as [string, string];
await runController(Number(port), directory);
