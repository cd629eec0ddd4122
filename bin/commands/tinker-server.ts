import { Command } from "commander";
import { tinkerServerConfigSchema } from "../../backends/tinker/server/tinker-server-config.ts";
import { parseCount, parsePort } from "../option-values.ts";
import { type ServeFlags, serveProcess } from "../serve-process.ts";

/** `outrigger backend tinker-server`: any Tinker client trains the model of a directory. */
export function tinkerServerCommand(): Command {
  return new Command("tinker-server")
    .description("Serve the Tinker protocol in front of the native trainer.")
    .option("-c, --config <file>", "YAML or JSON configuration file")
    .option("-m, --model <dir>", "Hugging Face model directory that models start from")
    .option("-s, --state <dir>", "where saved weights are kept")
    .option("--host <address>", "address to listen on (default 127.0.0.1)")
    .option("--port <number>", "port; 0 takes any free one (default 0)", parsePort)
    .option("--model-name <name>", "name of the base model (default: the model directory's)")
    .option("--compute <name>", "what to calculate with, as for `backend native` (default auto)")
    .option("--threads <number>", "threads of the compute library (default: all)", parseCount)
    .option("--seed <number>", "seed of sampling (default 0)", parseCount)
    .option("--slots <number>", "sequences sampled at once (default 64)", parseCount)
    .option("--max-length <number>", "longest context in tokens (default: the model's)", parseCount)
    .option("--max-models <number>", "models trained at the same time (default 4)", parseCount)
    .option("--log-level <level>", "trace, debug, info, warn, error or silent")
    .option("--exit-with-parent", "end when standard input closes, that is when the parent dies")
    .option("--print-config", "print every value with its source, and end")
    .addHelpText(
      "after",
      `
Every value can also be set in the file or as OUTRIGGER_TINKER_<PATH>; the key that clients must
send as X-API-Key is OUTRIGGER_TINKER_API_KEY, needed where --host is not loopback. Models are
trained in full: a client's LoRA rank is accepted and has no effect.

Example:
  outrigger backend tinker-server --model ./policy --state ./saved --port 8000
  # in Python: tinker.ServiceClient(base_url="http://127.0.0.1:8000", api_key="tml-any")`,
    )
    .action(run);
}

function run(flags: ServeFlags, command: Command): Promise<void> {
  return serveProcess({
    name: "tinker-server",
    schema: tinkerServerConfigSchema,
    environmentPrefix: "TINKER",
    flags,
    command,
    start: async (config, log) => {
      const [{ startTinkerServer }, { selectCompute }] = await Promise.all([
        import("../../backends/tinker/server/start-tinker-server.ts"),
        import("../../backends/native/compute/select-compute.ts"),
      ]);
      const server = await startTinkerServer({
        config,
        log,
        openCompute: (model, weights, { compute, threads }) =>
          selectCompute(compute, model.config, weights, threads === undefined ? {} : { threads }),
      });
      const { url, port, baseModel, computeReason } = server;
      return { listening: { url, port, baseModel, computeReason }, close: () => server.close() };
    },
  });
}
