import { openOrtCompute } from "../../backends/native/compute/ort/open-ort-compute.ts";
import { openTfjsCompute } from "../../backends/native/compute/tfjs/open-tfjs-compute.ts";
import { loadTfjs, type TfjsBackend } from "../../backends/native/compute/tfjs/tfjs-library.ts";
import type { OpenCompute } from "./compute-fixtures.ts";

export interface ComputeImplementation {
  readonly name: string;
  readonly open: OpenCompute;
  readonly expected: { readonly library: string; readonly device: string };
}

const onTfjs = (backend: TfjsBackend, device: string): ComputeImplementation => ({
  name: `tfjs ${backend}`,
  open: (config, weights, options) => openTfjsCompute(config, weights, { backend, ...options }),
  expected: { library: `tfjs-${backend}`, device },
});

const always: readonly ComputeImplementation[] = [
  {
    name: "ort on cpu",
    open: (config, weights, options) => openOrtCompute(config, weights, { threads: 1, ...options }),
    expected: { library: "onnxruntime-node", device: "cpu" },
  },
  onTfjs("wasm", "wasm"),
  onTfjs("js", "js"),
];

/** Those that a machine may lack: an optional package, or hardware. */
const optional: readonly (readonly [TfjsBackend, string])[] = [
  ["node", "cpu"],
  ["node-gpu", "gpu"],
];

async function probeOptional() {
  const present: ComputeImplementation[] = [];
  const skipped: { readonly name: string; readonly reason: string }[] = [];
  for (const [backend, device] of optional) {
    try {
      await loadTfjs(backend);
      present.push(onTfjs(backend, device));
    } catch (error) {
      skipped.push({ name: `tfjs ${backend}`, reason: (error as Error).message });
    }
  }
  return { present, skipped };
}

const probed = await probeOptional();
export const computeImplementations = [...always, ...probed.present];
/** Each with the reason that the suite shows. */
export const skippedImplementations = probed.skipped;
