import { InvalidArgumentError } from "commander";

/** Values of options; commander adds the option's name to what is wrong. */
export function parseCount(text: string): number {
  return parseWhole(text, Number.MAX_SAFE_INTEGER);
}

/** 0 asks for any free one. */
export function parsePort(text: string): number {
  return parseWhole(text, 65_535);
}

function parseWhole(text: string, max: number): number {
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (value <= max) return value;
  const bound = max === Number.MAX_SAFE_INTEGER ? ", 0 or more" : ` from 0 to ${max}`;
  throw new InvalidArgumentError(`It must be a whole number${bound}.`);
}
