import type { Tensor } from "@tensorflow/tfjs";
import type { ModelConfig } from "../../model/model-config.ts";
import { embeddingName } from "../../model/parameter-shapes.ts";
import { causalMask } from "../causal-mask.ts";
import type { DecodeStep, Kernels } from "../kernels.ts";
import { addEmbeddingGradient, addInto, type ParameterStore } from "../parameter-store.ts";
import { type RopeTable, ropeTable } from "../rope-table.ts";
import type { PaddedBatch } from "../row-batches.ts";
import { decodeStep, type StepTensors } from "./tfjs-decoding.ts";
import { createTfjsLayers, type ParameterTensors } from "./tfjs-layers.ts";
import type { Tf } from "./tfjs-library.ts";
import { type BatchTensors, createTfjsTraining } from "./tfjs-training.ts";

/** Device copies of the parameters, made when they are next needed after a change. */
function createParameterTensors(tf: Tf, store: ParameterStore) {
  let tensors: Map<string, Tensor> | undefined;
  const dispose = (): void => {
    for (const tensor of tensors?.values() ?? []) tensor.dispose();
    tensors = undefined;
  };
  return {
    dispose,
    get(): ParameterTensors {
      // The store's arrays change in place, and some back ends keep a reference: hence the copy.
      tensors ??= new Map(
        Array.from(store.views, ([name, { data, shape }]) => [
          name,
          tf.keep(tf.tensor(data.slice(), [...shape])),
        ]),
      );
      return tensors;
    },
  };
}

/** For each position the index of the token it predicts, or M. */
function invertIndexes(indexes: Int32Array, length: number): Int32Array {
  const inverse = new Int32Array(length).fill(indexes.length);
  for (const [i, position] of indexes.entries()) inverse[position] = i;
  return inverse;
}

const floats = async (tensor: Tensor): Promise<Float32Array> =>
  (await tensor.data()) as Float32Array;

/** `Kernels` on a TensorFlow.js back end that has been set. */
export function createTfjsKernels(tf: Tf, config: ModelConfig, store: ParameterStore): Kernels {
  const parameters = createParameterTensors(tf, store);
  const layers = createTfjsLayers(tf, config, () => parameters.get());
  const training = createTfjsTraining(tf, layers, config);
  const group = config.headCount / config.kvHeadCount;
  const half = config.headDim / 2;
  let table: RopeTable = ropeTable(config, 64);

  const tableOf = (length: number): RopeTable => {
    if (table.length < length) table = ropeTable(config, Math.max(length, 2 * table.length));
    return table;
  };
  const maskTensor = (length: number): Tensor =>
    tf.tensor(causalMask(group, length), [group * length, length]);
  const uploadBatch = (batch: PaddedBatch): BatchTensors => {
    const { cos, sin } = tableOf(batch.length);
    const ofLength = (values: Float32Array): Tensor =>
      tf.tensor(values.slice(0, batch.length * half), [batch.length, half]);
    return {
      rowCount: batch.rowCount,
      length: batch.length,
      tokenIds: tf.tensor1d(batch.tokenIds, "int32"),
      predictIndexes: tf.tensor1d(batch.predictIndexes, "int32"),
      predictedBy: tf.tensor1d(invertIndexes(batch.predictIndexes, batch.tokenIds.length), "int32"),
      targets: tf.oneHot(tf.tensor1d(batch.targets, "int32"), config.vocabSize).toFloat(),
      causalMask: maskTensor(batch.length),
      rotation: { cos: ofLength(cos), sin: ofLength(sin) },
    };
  };
  const uploadStep = (step: DecodeStep): StepTensors => {
    const { count, width, pastWidth } = step;
    const { cos, sin } = tableOf(step.positions.reduce((a, b) => Math.max(a, b), 0) + 1);
    const atPositions = (values: Float32Array): Tensor => {
      const picked = new Float32Array(step.positions.length * half);
      for (const [i, p] of step.positions.entries()) {
        picked.set(values.subarray(p * half, (p + 1) * half), i * half);
      }
      return tf.tensor(picked, [count, 1, width, half]);
    };
    const cacheShape = [count, config.kvHeadCount, pastWidth, config.headDim];
    const past = {
      mask: tf.tensor(step.pastMask, [count, 1, 1, pastWidth]),
      layers: step.past.map(({ keys, values }) => ({
        keys: tf.tensor(keys, cacheShape),
        values: tf.tensor(values, cacheShape),
      })),
    };
    return {
      count,
      width,
      tokenIds: tf.tensor1d(step.tokenIds, "int32"),
      lastIndexes: tf.tensor1d(step.lastIndexes, "int32"),
      rotation: { cos: atPositions(cos), sin: atPositions(sin) },
      newMask: maskTensor(width),
      ...(pastWidth === 0 ? {} : { past }),
    };
  };

  return {
    async forward(batch, temperature) {
      parameters.get();
      const logprobs = tf.tidy(() => training.forward(uploadBatch(batch), temperature).logprobs);
      const values = await floats(logprobs);
      logprobs.dispose();
      return values;
    },
    async openPass(batch, temperature) {
      parameters.get();
      // tidy keeps what it returns; a plain array of all tensors is what it can see into.
      const kept = tf.tidy(() => {
        const tensors = uploadBatch(batch);
        return { tensors, activations: training.forward(tensors, temperature) } as never;
      }) as {
        tensors: BatchTensors;
        activations: ReturnType<typeof training.forward>;
      };
      return {
        logprobs: await floats(kept.activations.logprobs),
        async backward(logprobGradient, gradients) {
          const outputs = tf.tidy(() => {
            const g = tf.tensor2d(logprobGradient, [logprobGradient.length, 1]);
            const result = training.backward(kept.tensors, kept.activations, g, temperature);
            return { ...Object.fromEntries(result.gradients), embedded: result.embedded };
          }) as Record<string, Tensor>;
          for (const [name, view] of gradients.views) {
            const part = outputs[name];
            if (part !== undefined) addInto(view.data, await floats(part));
            if (name !== embeddingName) continue;
            const dx = await floats(outputs["embedded"] as Tensor);
            addEmbeddingGradient(view.data, batch.tokenIds, dx);
          }
          tf.dispose(outputs);
        },
        release: () => tf.dispose(kept as never),
      };
    },
    passFloats(rowCount, length) {
      const { hiddenSize, intermediateSize, headCount, headDim, layerCount, vocabSize } = config;
      const attention = 4 * headCount * headDim + headCount * length;
      const perLayer = 5 * hiddenSize + 3 * intermediateSize + attention;
      return rowCount * length * (layerCount * perLayer + 2 * hiddenSize + 2 * vocabSize);
    },
    async decodeStep(step) {
      parameters.get();
      const outputs = tf.tidy(
        () => decodeStep(tf, layers, config, uploadStep(step)) as never,
      ) as ReturnType<typeof decodeStep>;
      const result = {
        logits: await floats(outputs.logits),
        layers: await Promise.all(
          outputs.layers.map(async ({ keys, values }) => ({
            keys: await floats(keys),
            values: await floats(values),
          })),
        ),
      };
      tf.dispose(outputs as never);
      return result;
    },
    weightsChanged: () => parameters.dispose(),
    close: async () => parameters.dispose(),
  };
}
