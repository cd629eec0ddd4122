import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { ownDialectScript } from "../conformance/own-dialect-script.ts";
import {
  type EngineScript,
  jsonSteps,
  type ScriptedEngine,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { type EngineAnswer, vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar } from "./sidecar-support.ts";

const environment = process.env["OUTRIGGER_TEST_VENV"];
const python = join(environment ?? "", "bin/python");
const isThere = environment !== undefined && existsSync(python);
const script = resolve(import.meta.dirname, "python/ask.py");
const run = promisify(execFile);

it("CI has the Python clients", () => {
  if (process.env["CI"] === "true") expect(isThere, "OUTRIGGER_TEST_VENV").toBe(true);
});

const answer: EngineAnswer = {
  content: "Let me look.",
  toolCalls: [{ id: "call_1", name: "weather", arguments: '{"city": "Bergen"}' }],
};
const never = new Promise<never>(() => {});

/** Refuses `refuse`, and never ends the stream of `abort`. */
function scripted(answering: EngineScript, stuck: EngineScript): EngineScript {
  return (request) => {
    const text = request.body.toString();
    if (text.includes('"refuse"')) return jsonSteps(429, refusal);
    return text.includes('"abort"') ? stuck(request) : answering(request);
  };
}

/** In OpenAI's and in Anthropic's shape at once. */
const refusal = { type: "error", error: { type: "rate_limit_error", message: "later" } };

// Without CI: skipped unless OUTRIGGER_TEST_VENV names a venv with test/python/requirements.txt.
describe.skipIf(!isThere)(
  "the official Python clients get through the sidecar what they get directly",
  () => {
    let engine: ScriptedEngine;
    let own: ScriptedEngine;
    let proxied: TestSidecar;

    beforeAll(async () => {
      const stuck = vllmScript({ betweenEvents: (index) => (index === 2 ? never : undefined) });
      engine = await startScriptedEngine(scripted(vllmScript({ answer: () => answer }), stuck));
      own = await startScriptedEngine(vllmScript());
      proxied = await startTestSidecar([engine.url]);
    });
    afterAll(async () => {
      await proxied.close();
      await engine.close();
      await own.close();
    });

    async function ask(client: string, url: string): Promise<Record<string, unknown>> {
      const { stdout } = await run(python, [script, client, url], { timeout: 100_000 });
      return JSON.parse(stdout) as Record<string, unknown>;
    }

    /** A service of the API itself, which counts as many tokens as the engine did. */
    function speakOwn(): void {
      const usage = proxied.calls[0]?.usage;
      if (usage == null) throw new Error("no record with a count");
      const stuck = ownDialectScript({
        answer: () => ({ content: "answer and more of it" }),
        usage,
        betweenEvents: (index) => (index === 6 ? never : undefined),
      });
      own.setScript(scripted(ownDialectScript({ answer: () => answer, usage }), stuck));
    }

    /** Of an aborted and a refused call after two whole ones. */
    async function expectRecords(dialect: string): Promise<void> {
      const calls = await proxied.recorded(4);
      expect(calls.map((call) => call.dialect)).toEqual(Array(4).fill(dialect));
      for (const call of calls.slice(0, 2)) {
        expect(call).toMatchObject({ delivered: true });
        expect(call.choices[0]).toMatchObject({ complete: true, finishReason: "tool_calls" });
      }
      const aborted = calls.find((call) => call.errorReason === "harness-aborted");
      expect(aborted).toMatchObject({ delivered: false });
      expect(aborted?.choices[0]).toMatchObject({ complete: false });
      const refused = calls.find((call) => call.httpStatus === 429);
      expect(refused).toMatchObject({ delivered: false, choices: [] });
    }

    it("openai, chat: whole, streamed, aborted, refused", async () => {
      const through = await ask("openai", proxied.url);
      await expectRecords("chat");
      expect(through).toEqual(await ask("openai", engine.url));
      expect(through["refused"]).toEqual({ name: "RateLimitError", status: 429 });
      expect(through["seen"]).toBe("answer");
    });

    it.each([
      ["openai, Responses", "responses"],
      ["anthropic", "messages"],
    ])("%s: whole, streamed, aborted, refused", async (name, dialect) => {
      proxied.calls.length = 0;
      const client = name === "anthropic" ? name : dialect;
      const through = await ask(client, proxied.url);
      await expectRecords(dialect);
      speakOwn();
      expect(comparable(through)).toEqual(comparable(await ask(client, own.url)));
      expect(through["refused"]).toEqual({ name: "RateLimitError", status: 429 });
      expect(through["seen"]).toBe("answer");
    });
  },
);

/** Item ids are each service's own. */
function comparable(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value).replaceAll(/"(msg|rs|fc)_\w+"/g, '"$1"')) as unknown;
}
