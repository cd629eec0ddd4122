import type { ModelConfig } from "../../model/model-config.ts";
import type { NamedWeights } from "../../model/named-weights.ts";
import type { Compute } from "../compute.ts";
import { createHostCompute, type HostComputeOptions } from "../host-compute.ts";
import { createHostParameters } from "../host-parameters.ts";
import { createTfjsKernels } from "./create-tfjs-kernels.ts";
import { loadTfjs, type TfjsBackend } from "./tfjs-library.ts";

export interface TfjsComputeOptions extends HostComputeOptions {
  readonly backend: TfjsBackend;
}

/**
 * `Compute` on TensorFlow.js. The library has one back end per process: opening another one makes
 * it the current one, so open two only one after the other. Throws `compute-unavailable` when the
 * back end's package or its library is missing, or another back end answers in its place.
 */
export async function openTfjsCompute(
  config: ModelConfig,
  weights: NamedWeights,
  options: TfjsComputeOptions,
): Promise<Compute> {
  const { tf, version, device } = await loadTfjs(options.backend);
  const host = createHostParameters(config, weights);
  return createHostCompute(
    { library: `tfjs-${options.backend}`, version, device },
    config,
    host,
    createTfjsKernels(tf, config, host.weights),
    options,
  );
}
