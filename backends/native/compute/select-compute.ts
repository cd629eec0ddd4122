import { readdirSync } from "node:fs";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";
import type { NamedWeights } from "../model/named-weights.ts";
import { checkDevice } from "./check-device.ts";
import type { Compute } from "./compute.ts";
import { type ComputeChoice, candidateChoices, isGpuExpected, isOnGpu } from "./compute-choice.ts";
import type { HostComputeOptions } from "./host-compute.ts";

export interface SelectComputeOptions extends HostComputeOptions {
  /** Threads of ONNX Runtime on the CPU; default: all that the process may use. */
  readonly threads?: number;
}

export interface SelectedCompute {
  readonly compute: Compute;
  /** Why this library and device, for people. */
  readonly reason: string;
}

function listDeviceFiles(): string[] {
  return ["/dev", "/dev/dri"].flatMap((folder) => {
    try {
      return readdirSync(folder);
    } catch {
      return [];
    }
  });
}

/** Libraries are loaded when they are chosen: TensorFlow.js alone takes seconds. */
async function openChoice(
  choice: ComputeChoice,
  config: ModelConfig,
  weights: NamedWeights,
  options: SelectComputeOptions,
): Promise<Compute> {
  if (choice.library === "tfjs") {
    const { openTfjsCompute } = await import("./tfjs/open-tfjs-compute.ts");
    return openTfjsCompute(config, weights, { ...options, backend: choice.backend });
  }
  const { openOrtCompute } = await import("./ort/open-ort-compute.ts");
  return openOrtCompute(config, weights, { ...options, device: choice.device });
}

async function openChecked(
  choice: ComputeChoice,
  config: ModelConfig,
  weights: NamedWeights,
  options: SelectComputeOptions,
): Promise<Compute> {
  if (isOnGpu(choice)) {
    const cpu: ComputeChoice = { name: "ort-cpu", library: "ort", device: "cpu" };
    await checkDevice(
      choice.name,
      (c, w) => openChoice(choice, c, w, {}),
      (c, w) => openChoice(cpu, c, w, {}),
    );
  }
  return openChoice(choice, config, weights, options);
}

/** "ort-cpu: asked for by name", "ort-cpu: no GPU here", "tfjs-wasm: tfjs-node: package … is missing" */
export function explainSelection(
  asked: string,
  choice: ComputeChoice,
  isGpuPresent: boolean,
  failures: readonly string[],
): string {
  if (choice.name === asked) return `${choice.name}: asked for by name`;
  const reasons = [...(isGpuPresent ? [] : ["no GPU found"]), ...failures];
  return reasons.length === 0
    ? `${choice.name}: the best of "${asked}"`
    : `${choice.name}: the best of "${asked}" here (${reasons.join("; ")})`;
}

/**
 * Opens the best compute that `name` allows (see `computeNames`). What could not be opened on the
 * way is in the reason; when nothing could, throws the first failure's error.
 */
export async function selectCompute(
  name: string,
  config: ModelConfig,
  weights: NamedWeights,
  options: SelectComputeOptions = {},
): Promise<SelectedCompute> {
  const { platform } = process;
  const isGpuPresent = isGpuExpected(platform, listDeviceFiles());
  const failures: OutriggerError[] = [];
  for (const choice of candidateChoices(name, { platform, isGpuPresent })) {
    try {
      const compute = await openChecked(choice, config, weights, options);
      const messages = failures.map((failure) => failure.message);
      return { compute, reason: explainSelection(name, choice, isGpuPresent, messages) };
    } catch (error) {
      const isMissing = error instanceof OutriggerError && error.reason.startsWith("compute-");
      if (!isMissing) throw error;
      failures.push(error);
    }
  }
  throw (
    failures[0] ??
    new OutriggerError("compute-unavailable", `nothing opens for "${name}"`, {
      origin: "backend",
      hint: "Choose --compute ort-cpu.",
    })
  );
}
