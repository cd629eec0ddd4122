import { availableParallelism } from "node:os";
import ort from "onnxruntime-node";
import type { ModelConfig } from "../../model/model-config.ts";
import type { NamedWeights } from "../../model/named-weights.ts";
import type { Compute } from "../compute.ts";
import { createHostCompute, type HostComputeOptions } from "../host-compute.ts";
import { createHostParameters } from "../host-parameters.ts";
import { openOrtDecoder } from "./ort-decoder.ts";
import type { OrtDevice } from "./ort-session.ts";
import { createOrtTrainer } from "./ort-trainer.ts";

export interface OrtComputeOptions extends HostComputeOptions {
  /** Default "cpu". */
  readonly device?: OrtDevice;
  /** Threads within one operator; default: the CPUs that this process may use. */
  readonly threads?: number;
}

/**
 * `Compute` on ONNX Runtime. Throws `compute-unavailable` when the device cannot be had; it never
 * falls back to another one.
 */
export async function openOrtCompute(
  config: ModelConfig,
  weights: NamedWeights,
  options: OrtComputeOptions = {},
): Promise<Compute> {
  const device = options.device ?? "cpu";
  const threads = options.threads ?? availableParallelism();
  const host = createHostParameters(config, weights);
  const trainer = createOrtTrainer(config, host.weights, { device, threads });
  const decoder = await openOrtDecoder(config, host.weights, { device, threads });
  const version = ort.env.versions.node ?? ort.env.versions.common;
  const kernels = {
    ...trainer,
    decodeStep: decoder.decodeStep,
    // The graphs read the parameter store's own memory.
    weightsChanged: () => undefined,
    async close() {
      await trainer.close();
      await decoder.close();
    },
  };
  return createHostCompute(
    { library: "onnxruntime-node", version, device, threads },
    config,
    host,
    kernels,
    options,
  );
}
