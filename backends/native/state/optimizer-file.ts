import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { OptimizerState } from "../compute/compute.ts";
import type { Tensor } from "../model/named-weights.ts";
import { readSafetensors, writeSafetensors } from "../model/safetensors.ts";

const firstPrefix = "exp_avg.";
const secondPrefix = "exp_avg_sq.";

/** AdamW's moments under PyTorch's names for them, one tensor per parameter. */
export async function writeOptimizerFile(path: string, state: OptimizerState): Promise<void> {
  const tensors = new Map<string, Tensor>();
  for (const [name, tensor] of state.firstMoments) tensors.set(firstPrefix + name, tensor);
  for (const [name, tensor] of state.secondMoments) tensors.set(secondPrefix + name, tensor);
  await writeSafetensors(path, tensors, { metadata: { step: String(state.stepCount) } });
}

export async function readOptimizerFile(path: string): Promise<OptimizerState> {
  const { tensors, metadata } = await readSafetensors(path);
  const stepCount = Number(metadata.step);
  if (!Number.isInteger(stepCount) || stepCount < 0) {
    throw new OutriggerError("checkpoint-invalid", `${path}: no step count in its metadata`, {
      origin: "user",
      hint: "The optimizer state is damaged; restore a checkpoint.",
    });
  }
  const part = (prefix: string): Map<string, Tensor> => {
    const found = [...tensors].filter(([name]) => name.startsWith(prefix));
    return new Map(found.map(([name, tensor]) => [name.slice(prefix.length), tensor]));
  };
  return { stepCount, firstMoments: part(firstPrefix), secondMoments: part(secondPrefix) };
}
