import { openOrtCompute } from "../../backends/native/compute/ort/open-ort-compute.ts";
import type { OpenCompute } from "./compute-fixtures.ts";

interface Implementation {
  readonly name: string;
  readonly open: OpenCompute;
  readonly expected: { readonly library: string; readonly device: string };
}

export const computeImplementations: readonly Implementation[] = [
  {
    name: "ort on cpu",
    open: (config, weights, options) => openOrtCompute(config, weights, { threads: 1, ...options }),
    expected: { library: "onnxruntime-node", device: "cpu" },
  },
];

export const skippedImplementations: readonly { readonly name: string; readonly reason: string }[] =
  [];
