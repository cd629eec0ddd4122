import type { Call } from "../call.ts";

/** A call as assembly reads it: logprobs may also have the double precision of a JSON trace. */
export type CapturedCall = Omit<Call, "logprobs"> & {
  readonly logprobs: Float32Array | Float64Array | null;
};
