import { fromBinary } from "@bufbuild/protobuf";
import {
  type BatchedTensor,
  GradientResultSchema,
  SampleResultSchema,
} from "../../proto/gen/outrigger/tinker/v1/results_pb.ts";

type Json = Readonly<Record<string, unknown>>;

/** A result in protobuf as its JSON form; which message it is follows from the call. */
export function decodeResult(path: string, bytes: Uint8Array): Json {
  return path === "asample" ? decodeSample(bytes) : decodeGradient(bytes);
}

function decodeSample(bytes: Uint8Array): Json {
  const { sequences, promptLogprobs } = fromBinary(SampleResultSchema, bytes);
  return {
    type: "sample",
    sequences: sequences.map(({ stopReason, tokens, logprobs }) => ({
      stop_reason: stopReason === 1 ? "length" : "stop",
      tokens: int32s(tokens),
      logprobs: logprobs === undefined ? [] : float32s(logprobs),
    })),
    ...(promptLogprobs !== undefined && {
      prompt_logprobs: float32s(promptLogprobs).map((v) => (Number.isNaN(v) ? null : v)),
    }),
  };
}

function decodeGradient(bytes: Uint8Array): Json {
  const message = fromBinary(GradientResultSchema, bytes);
  return {
    loss_fn_output_type: message.lossFnOutputType,
    loss_fn_outputs: message.lossFnOutputs.flatMap(({ fields, numDatums }) =>
      Array.from({ length: numDatums }, (_, row) =>
        Object.fromEntries(
          Object.entries(fields)
            .filter(([, { dtype }]) => dtype === 1)
            .map(([name, tensor]) => [name, { data: rowOf(tensor, row) }]),
        ),
      ),
    ),
    metrics: message.metrics,
  };
}

function rowOf({ data, offsets }: BatchedTensor, row: number): number[] {
  const ends = new DataView(offsets.buffer, offsets.byteOffset, offsets.byteLength);
  const at = (index: number): number => Number(ends.getBigInt64(8 * index, true));
  return float32s(data.subarray(at(row), at(row + 1)));
}

const viewOf = (bytes: Uint8Array): DataView =>
  new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

function float32s(bytes: Uint8Array): number[] {
  const view = viewOf(bytes);
  return Array.from({ length: bytes.length >> 2 }, (_, i) => view.getFloat32(4 * i, true));
}

function int32s(bytes: Uint8Array): number[] {
  const view = viewOf(bytes);
  return Array.from({ length: bytes.length >> 2 }, (_, i) => view.getInt32(4 * i, true));
}
