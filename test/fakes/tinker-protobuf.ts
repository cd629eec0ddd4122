import { create, toBinary } from "@bufbuild/protobuf";
import {
  GradientResultSchema,
  SampleResultSchema,
} from "../../proto/gen/outrigger/tinker/v1/results_pb.ts";

interface Sequence {
  readonly stop_reason: string;
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
}
type Row = Readonly<Record<string, { readonly data: readonly number[] }>>;

/** A JSON result as the protobuf that newer servers send; undefined for one that stays JSON. */
export function encodeResult(result: Readonly<Record<string, unknown>>): ArrayBuffer | undefined {
  const { sequences, loss_fn_outputs: rows } = result;
  if (sequences !== undefined) return encodeSample(result, sequences as Sequence[]);
  return rows === undefined ? undefined : encodeGradient(result, rows as Row[]);
}

function encodeSample(
  { prompt_logprobs: prompt }: Readonly<Record<string, unknown>>,
  sequences: readonly Sequence[],
): ArrayBuffer {
  return bytesOf(
    toBinary(
      SampleResultSchema,
      create(SampleResultSchema, {
        sequences: sequences.map(({ stop_reason, tokens, logprobs }) => ({
          stopReason: stop_reason === "length" ? 1 : 0,
          tokens: new Uint8Array(Int32Array.from(tokens).buffer),
          logprobs: float32s(logprobs),
        })),
        ...(prompt !== undefined && {
          promptLogprobs: float32s((prompt as (number | null)[]).map((v) => v ?? Number.NaN)),
        }),
      }),
    ),
  );
}

function encodeGradient(
  result: Readonly<Record<string, unknown>>,
  rows: readonly Row[],
): ArrayBuffer {
  const names = Object.keys(rows[0] ?? {});
  const fields = Object.fromEntries(
    names.map((name) => {
      const data = rows.map((row) => row[name]?.data ?? []);
      const offsets = new BigInt64Array(rows.length + 1);
      for (const [i, values] of data.entries()) {
        offsets[i + 1] = (offsets[i] as bigint) + BigInt(4 * values.length);
      }
      const tensor = { data: float32s(data.flat()), offsets: new Uint8Array(offsets.buffer) };
      return [name, { ...tensor, dtype: 1 }];
    }),
  );
  return bytesOf(
    toBinary(
      GradientResultSchema,
      create(GradientResultSchema, {
        lossFnOutputType: String(result["loss_fn_output_type"]),
        lossFnOutputs: rows.length === 0 ? [] : [{ fields, numDatums: rows.length }],
        metrics: result["metrics"] as Record<string, number>,
      }),
    ),
  );
}

const float32s = (values: readonly number[]): Uint8Array<ArrayBuffer> =>
  new Uint8Array(Float32Array.from(values).buffer);

const bytesOf = (bytes: Uint8Array): ArrayBuffer => Uint8Array.from(bytes).buffer;
