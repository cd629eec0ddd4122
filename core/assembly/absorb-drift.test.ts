import { expect, it } from "vitest";
import { canAbsorbDrift } from "./absorb-drift.ts";

/** Ids are letters; 99 is "cd". */
const decode = (ids: Int32Array) =>
  [...ids].map((id) => (id === 99 ? "cd" : String.fromCharCode(97 + id))).join("");

const facts = {
  earlierPromptLength: 1,
  earlierResponse: Int32Array.of(1, 2, 3),
  prompt: Int32Array.of(0, 1, 99, 7),
  shared: 2,
};

it.each([
  ["equal text, two tokens given up", facts, 2, true],
  ["one token more than allowed", facts, 1, false],
  ["none allowed", facts, 0, false],
  ["another text", { ...facts, prompt: Int32Array.of(0, 1, 4, 7) }, 2, false],
  ["a text that goes on before it ends", { ...facts, prompt: Int32Array.of(0, 1, 2) }, 2, false],
  ["no token of the response kept", { ...facts, shared: 1 }, 9, false],
  ["nothing drifted", { ...facts, prompt: Int32Array.of(0, 1, 2, 3), shared: 4 }, 2, false],
])("%s", (_, given, maxLostTokens, expected) => {
  expect(canAbsorbDrift(given, decode, maxLostTokens)).toBe(expected);
});
