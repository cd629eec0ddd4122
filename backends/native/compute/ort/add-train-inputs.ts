import type { ModelConfig } from "../../model/model-config.ts";
import { parameterShapes } from "../../model/parameter-shapes.ts";
import type { OnnxGraph } from "./onnx-graph.ts";

const addWeightInputs = (g: OnnxGraph, config: ModelConfig): void => {
  for (const { name, shape } of parameterShapes(config)) g.input(name, "float32", shape);
};

/** Inputs that the forward and backward graphs share: weights, the batch, the rope table. */
export function addTrainInputs(g: OnnxGraph, config: ModelConfig): void {
  addWeightInputs(g, config);
  g.input("token_ids", "int32", ["B", "T"]);
  g.input("predict_indexes", "int32", ["M"]);
  g.input("targets", "int32", ["M", 1]);
  g.input("inverse_temperature", "float32", []);
  g.input("positions", "int64", [1]);
  g.input("cos", "float32", ["L", config.headDim / 2]);
  g.input("sin", "float32", ["L", config.headDim / 2]);
}
