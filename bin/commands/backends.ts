import { createRequire } from "node:module";
import process from "node:process";
import { Command } from "commander";
import { type BackendKind, backendKinds } from "../../backends/backend-kinds.ts";
import { invocation } from "../../runtime/invocation.ts";

const require = createRequire(import.meta.url);

/** What the native trainer and the Tinker server in front of it can calculate with. */
const computePackages = [
  "onnxruntime-node",
  "@tensorflow/tfjs-node-gpu",
  "@tensorflow/tfjs-node",
  "@tensorflow/tfjs-backend-wasm",
  "@tensorflow/tfjs",
] as const;

/** Kinds whose trainer is no process of ours: it says by itself what it can do. */
const trainersOutside = {
  agl: {
    summary:
      "an Agent Lightning v1 trainer drives: its HTTP API is served (docs/agent-lightning.md)",
  },
} as const;

interface InstalledCompute {
  readonly package: string;
  /** null: not installed. */
  readonly version: string | null;
}

/** `outrigger backends`: which there are, what each can do, and what is installed here. */
export function backendsCommand(): Command {
  return new Command("backends")
    .description("List the trainer backends, what each can do, and what is installed here.")
    .option("--json", "as JSON")
    .action((flags: { readonly json?: boolean }) => {
      const computes = computePackages.map(findPackage);
      const text =
        flags.json === true
          ? JSON.stringify({ kinds: { ...backendKinds, ...trainersOutside }, computes }, null, 2)
          : describe(computes);
      process.stdout.write(`${text}\n`);
    });
}

function findPackage(name: string): InstalledCompute {
  try {
    const { version } = require(`${name}/package.json`) as { version: string };
    return { package: name, version };
  } catch {
    return { package: name, version: null };
  }
}

function describe(computes: readonly InstalledCompute[]): string {
  const kinds = Object.entries(backendKinds).flatMap(([name, kind]) => describeKind(name, kind));
  const installed = computes.map(
    ({ package: name, version }) => `  ${name.padEnd(30)} ${version ?? "not installed"}`,
  );
  const outside = Object.entries(trainersOutside).map(
    ([name, { summary }]) => `${name}: ${summary}\n`,
  );
  return [
    ...kinds,
    ...outside,
    "compute libraries here (native, and tinker without a url):",
    ...installed,
    "",
    `${invocation()} backend check EXPERIMENT tries the backend that an experiment names.`,
  ].join("\n");
}

function describeKind(name: string, kind: BackendKind): string[] {
  const yesNo = (value: boolean): string => (value ? "yes" : "no");
  return [
    `${name}: ${kind.summary}`,
    `  losses       ${kind.losses.join(", ")}${kind.supportsDualClip ? "; dual clip" : ""}`,
    `  corrections  ${kind.corrections.join(", ")}`,
    `  KL           ${yesNo(kind.supportsKl)}`,
    `  checkpoints  ${yesNo(kind.supportsRestore)}`,
    `  temperature  ${kind.supportsTemperature ? "any" : "1 only"}`,
    "",
  ];
}
