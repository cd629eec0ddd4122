import type { BackendDescription, UpdateSettings } from "../core/trainer-backend.ts";
import { tinkerCapabilities } from "./tinker/tinker-capabilities.ts";

export interface BackendKind
  extends Pick<BackendDescription, "losses" | "corrections" | "supportsKl" | "supportsRestore"> {
  readonly summary: string;
  /** PPO's bound for negative advantages. */
  readonly supportsDualClip: boolean;
  /** Training at the temperature that was sampled at, where that is not 1. */
  readonly supportsTemperature: boolean;
}

/** What each `backend.kind` of an experiment can do, known before anything is started. */
export const backendKinds = {
  native: {
    summary: "trains and serves Llama and Qwen2 models on this machine, in a process of its own",
    losses: ["ppo", "cispo", "gspo", "importance-sampling"],
    corrections: ["none", "truncate", "mask"],
    supportsKl: true,
    supportsRestore: true,
    supportsDualClip: true,
    supportsTemperature: true,
  },
  tinker: {
    summary:
      "trains on a Tinker server: verl (verl_tinker), SkyRL, or one in front of the native trainer",
    ...tinkerCapabilities,
    supportsDualClip: true,
    supportsTemperature: false,
  },
} as const satisfies Record<string, BackendKind>;

/** What an algorithm asks for that a backend cannot do, in the experiment file's words. */
export function capabilityProblems(
  name: string,
  kind: BackendKind,
  wanted: Pick<UpdateSettings, "loss" | "correction" | "klCoefficient" | "temperature">,
): string[] {
  const { loss, correction, klCoefficient, temperature } = wanted;
  const problems: string[] = [];
  const refuse = (field: string, alternatives: string): void => {
    problems.push(`${field}: the ${name} backend cannot do it; ${alternatives}`);
  };
  if (!kind.losses.includes(loss.kind)) {
    refuse(`algorithm.loss.kind ${loss.kind}`, `it has ${kind.losses.join(", ")}`);
  }
  if (loss.kind === "ppo" && loss.dualClip !== undefined && !kind.supportsDualClip) {
    refuse("algorithm.loss.dualClip", "leave it out");
  }
  if (!kind.corrections.includes(correction.kind)) {
    refuse(`algorithm.correction.kind ${correction.kind}`, `it has ${kind.corrections.join(", ")}`);
  }
  if (klCoefficient > 0 && !kind.supportsKl) {
    refuse(`algorithm.klCoefficient ${klCoefficient}`, "it must be 0");
  }
  if (temperature !== 1 && !kind.supportsTemperature) {
    refuse(`sampling.train.temperature ${temperature}`, "it must be 1");
  }
  return problems;
}
