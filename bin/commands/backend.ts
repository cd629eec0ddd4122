import { Command } from "commander";
import { nativeConfigSchema } from "../../backends/native/native-config.ts";
import { parseCount, parsePort } from "../option-values.ts";
import { type ServeFlags, serveProcess } from "../serve-process.ts";
import { backendCheckCommand } from "./backend-check.ts";
import { tinkerServerCommand } from "./tinker-server.ts";

/** How long running responses and a running update may take to end after SIGTERM. */
const graceMs = 20_000;

/** `outrigger backend …`: what trains; each runs until SIGTERM or SIGINT, `check` ends by itself. */
export function backendCommand(): Command {
  return new Command("backend")
    .addCommand(nativeCommand())
    .addCommand(tinkerServerCommand())
    .addCommand(backendCheckCommand());
}

function nativeCommand(): Command {
  return new Command("native")
    .description("Train a Llama or Qwen2 model in this process and serve it as the policy.")
    .option("-c, --config <file>", "YAML or JSON configuration file")
    .option("-m, --model <dir>", "Hugging Face model directory of the start policy")
    .option("-s, --state <dir>", "where weights, optimizer state and checkpoints are kept")
    .option("--host <address>", "address to listen on (default 127.0.0.1)")
    .option(
      "--policy-port <number>",
      "port of the policy; 0 takes any free one (default 0)",
      parsePort,
    )
    .option(
      "--grpc-port <number>",
      "port of the trainer; 0 takes any free one (default 0)",
      parsePort,
    )
    .option("--policy-url <url>", "policy URL to give to the controller, up to and including /v1")
    .option("--model-name <name>", "name of the served model (default: the model directory's)")
    .option(
      "--compute <name>",
      "what to calculate with: auto, ort, ort-cpu, ort-webgpu, ort-cuda, tfjs, tfjs-node-gpu, tfjs-node, tfjs-wasm, tfjs-js (default auto)",
    )
    .option("--threads <number>", "threads of the compute library (default: all)", parseCount)
    .option("--seed <number>", "seed of sampling (default 0)", parseCount)
    .option("--slots <number>", "sequences decoded at once (default 64)", parseCount)
    .option("--max-length <number>", "longest context in tokens (default: the model's)", parseCount)
    .option("--log-level <level>", "trace, debug, info, warn, error or silent")
    .option("--exit-with-parent", "end when standard input closes, that is when the parent dies")
    .option("--print-config", "print every value with its source, and end")
    .addHelpText(
      "after",
      `
Every value can also be set in the file or as OUTRIGGER_BACKEND_<PATH>; the key that callers must
send is OUTRIGGER_BACKEND_API_KEY, needed where --host is not loopback.

Example:
  outrigger backend native --model ./policy --state ./state --policy-port 8000 --grpc-port 8001`,
    )
    .action(run);
}

function run(flags: ServeFlags, command: Command): Promise<void> {
  return serveProcess({
    name: "native-backend",
    schema: nativeConfigSchema,
    environmentPrefix: "BACKEND",
    flags,
    command,
    start: async (config, log) => {
      const [{ startNativeProcess }, { selectCompute }] = await Promise.all([
        import("../../backends/native/native-process.ts"),
        import("../../backends/native/compute/select-compute.ts"),
      ]);
      const native = await startNativeProcess({
        config,
        log,
        openCompute: (model, weights, { compute, threads }) =>
          selectCompute(compute, model.config, weights, threads === undefined ? {} : { threads }),
      });
      const { policyUrl, policyPort, grpcPort, compute, computeReason, version } = native;
      const listening = { policyUrl, policyPort, grpcPort, compute, computeReason, version };
      return { listening, close: () => native.close(graceMs) };
    },
  });
}
