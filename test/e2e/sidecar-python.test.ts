import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar } from "./sidecar-support.ts";

const environment = process.env["OUTRIGGER_TEST_VENV"];
const python = join(environment ?? "", "bin/python");
const isThere = environment !== undefined && existsSync(python);
const script = resolve(import.meta.dirname, "python/ask.py");
const run = promisify(execFile);

it("CI has the Python clients", () => {
  if (process.env["CI"] === "true") expect(isThere, "OUTRIGGER_TEST_VENV").toBe(true);
});

// Without CI: skipped unless OUTRIGGER_TEST_VENV names a venv with test/python/requirements.txt.
describe.skipIf(!isThere)("the official Python clients through the sidecar", () => {
  let engine: ScriptedEngine;
  let proxied: TestSidecar;

  beforeAll(async () => {
    engine = await startScriptedEngine(
      vllmScript({
        answer: () => ({
          content: "Let me look.",
          toolCalls: [{ id: "call_1", name: "weather", arguments: '{"city": "Bergen"}' }],
        }),
      }),
    );
    proxied = await startTestSidecar([engine.url]);
  });
  afterAll(async () => {
    await proxied.close();
    await engine.close();
  });

  async function ask(client: string, url: string): Promise<unknown> {
    const { stdout } = await run(python, [script, client, url], { timeout: 100_000 });
    return JSON.parse(stdout);
  }

  it("openai: whole, streamed and aborted answers equal the direct ones", async () => {
    const direct = await ask("openai", engine.url);
    const through = await ask("openai", proxied.url);
    expect(through).toEqual(direct);
    const [whole, streamed, aborted] = await proxied.recorded(3);
    for (const call of [whole, streamed]) {
      expect(call).toMatchObject({ delivered: true });
      expect(call?.choices[0]).toMatchObject({ complete: true, finishReason: "tool_calls" });
    }
    expect(aborted?.dialect).toBe("chat");
  });

  it("anthropic: whole and streamed give the same message, captured complete", async () => {
    proxied.calls.length = 0;
    const answer = (await ask("anthropic", proxied.url)) as Record<string, object>;
    expect(answer["whole"]).toMatchObject({
      stop_reason: "tool_use",
      content: [
        { type: "text", text: "Let me look." },
        { type: "tool_use", name: "weather", input: { city: "Bergen" } },
      ],
    });
    expect(answer["streamed"]).toMatchObject({
      stop_reason: "tool_use",
      content: (answer["whole"] as { content: object }).content,
    });
    const calls = await proxied.recorded(2);
    expect(calls.every((call) => call.delivered && call.choices[0]?.complete)).toBe(true);
  });
});
