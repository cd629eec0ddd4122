import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { OrtDevice } from "./ort/ort-session.ts";
import type { TfjsBackend } from "./tfjs/tfjs-library.ts";

/** One library on one device. */
export type ComputeChoice =
  | { readonly name: string; readonly library: "ort"; readonly device: OrtDevice }
  | { readonly name: string; readonly library: "tfjs"; readonly backend: TfjsBackend };

const choices: readonly ComputeChoice[] = [
  { name: "ort-cuda", library: "ort", device: "cuda" },
  { name: "ort-webgpu", library: "ort", device: "webgpu" },
  { name: "tfjs-node-gpu", library: "tfjs", backend: "node-gpu" },
  { name: "ort-cpu", library: "ort", device: "cpu" },
  { name: "tfjs-node", library: "tfjs", backend: "node" },
  { name: "tfjs-wasm", library: "tfjs", backend: "wasm" },
  { name: "tfjs-js", library: "tfjs", backend: "js" },
];

const onGpu = new Set(["ort-cuda", "ort-webgpu", "tfjs-node-gpu"]);
export const isOnGpu = (choice: ComputeChoice): boolean => onGpu.has(choice.name);

/** What `--compute` takes. */
export const computeNames: readonly string[] = [
  "auto",
  "ort",
  "tfjs",
  ...choices.map((c) => c.name),
];

/** What selection needs to know of the machine. */
export interface ComputeFacts {
  readonly platform: NodeJS.Platform;
  readonly isGpuPresent: boolean;
}

/**
 * The choices that a name allows, best first; the first that opens is taken. `auto` and `ort` prefer
 * a GPU where there is one and end at the CPU; a full name allows only itself. Throws
 * `compute-unknown` for other names.
 */
export function candidateChoices(name: string, facts: ComputeFacts): ComputeChoice[] {
  const usable = choices.filter((choice) => facts.isGpuPresent || !isOnGpu(choice));
  // CUDA is NVIDIA's, and not on a Mac.
  const fitting = usable.filter((c) => c.name !== "ort-cuda" || facts.platform !== "darwin");
  if (name === "auto") return fitting.filter((c) => c.library === "ort" || isOnGpu(c));
  if (name === "ort" || name === "tfjs") return fitting.filter((c) => c.library === name);
  const exact = choices.find((choice) => choice.name === name);
  if (exact !== undefined) return [exact];
  throw new OutriggerError("compute-unknown", `there is no compute "${name}"`, {
    origin: "user",
    hint: `Choose one of ${computeNames.join(", ")}.`,
  });
}

/**
 * Whether a real GPU can be expected. On Linux the driver shows as a device file; a software
 * renderer, which WebGPU would take without a word, has none. Macs and Windows machines have one.
 */
export const isGpuExpected = (
  platform: NodeJS.Platform,
  deviceFiles: readonly string[],
): boolean =>
  platform === "linux"
    ? deviceFiles.some((file) => /^(nvidia\d+|renderD\d+|kfd)$/.test(file))
    : platform === "darwin" || platform === "win32";
