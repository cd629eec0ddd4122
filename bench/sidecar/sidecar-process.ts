import process from "node:process";
import { openLog } from "../../runtime/log.ts";
import { sidecarConfigSchema } from "../../sidecar/sidecar-config.ts";
import { Sidecar } from "../../sidecar/start-sidecar.ts";

/** The sidecar as a child of the bench: records go to a real spool; no controller answers. */
const [engineUrl = "", spoolDir = ""] = process.argv.slice(2);
const config = sidecarConfigSchema.parse({
  port: 0,
  engines: { urls: [engineUrl] },
  controller: { address: "127.0.0.1:9" },
  binding: { rolloutId: "bench" },
  spool: { dir: spoolDir, maxBytes: 8 * 1024 ** 3 },
});
const sidecar = await Sidecar.start({
  config,
  version: "bench",
  log: openLog({ level: "error", process: "sidecar" }),
});
await sidecar.probed(10_000);
process.on("message", (message: string) => {
  if (message === "stop") process.exit(0);
  process.send?.({ cpu: process.cpuUsage() });
});
process.send?.({ port: Number(new URL(sidecar.url).port) });
