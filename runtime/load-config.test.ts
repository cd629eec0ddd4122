import { describe, expect, it } from "vitest";
import * as z from "zod";
import { loadConfig } from "./load-config.ts";

const schema = z.object({
  rolloutId: z.string().optional(),
  port: z.number().default(8787),
  engines: z
    .object({ urls: z.array(z.string()).default([]), apiKey: z.string().optional() })
    .prefault({}),
  captureText: z.boolean().optional(),
});

const load = async (environment: Record<string, string>) =>
  (await loadConfig(schema, { environment, environmentPrefix: "TEST", flags: {} })).config;

describe("a value from the environment", () => {
  it.each([
    ["a text that looks like a number", "ROLLOUT_ID", "17", { rolloutId: "17" }],
    ["a text that looks like JSON", "ROLLOUT_ID", "true", { rolloutId: "true" }],
    ["a number", "PORT", "9", { port: 9 }],
    ["a boolean", "CAPTURE_TEXT", "true", { captureText: true }],
    ["one of a list", "ENGINES_URLS", "http://a", { engines: { urls: ["http://a"] } }],
    [
      "a list",
      "ENGINES_URLS",
      "http://a, http://b",
      { engines: { urls: ["http://a", "http://b"] } },
    ],
    ["a list as JSON", "ENGINES_URLS", '["http://a"]', { engines: { urls: ["http://a"] } }],
    ["a key of digits", "ENGINES_API_KEY", "123", { engines: { apiKey: "123" } }],
  ])("%s", async (_name, variable, text, expected) => {
    expect(await load({ [`OUTRIGGER_TEST_${variable}`]: text })).toMatchObject(expected);
  });

  it("that is no value of the setting is refused, with where it came from", async () => {
    await expect(load({ OUTRIGGER_TEST_PORT: "many" })).rejects.toThrow(
      /port: .*expected number.*\(from environment\)/,
    );
  });
});
