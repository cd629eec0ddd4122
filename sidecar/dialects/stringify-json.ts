import type { DialectError } from "./dialect.ts";

/**
 * JSON text of a value; undefined where it is nested too deeply (some thousand levels): the parser
 * takes any depth, the writer runs out of stack.
 */
export function stringifyJson(value: unknown): string | undefined {
  try {
    return JSON.stringify(value);
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

/** For a request that cannot be written for that reason. */
export const tooDeep: DialectError = {
  status: 400,
  reason: "body-too-deep",
  message: "the request is nested too deeply to be translated",
};
