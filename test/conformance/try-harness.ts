/**
 * Runs a real harness, once, without a person, against a sidecar and a scripted engine, and says
 * what was captured: `npx tsx test/conformance/try-harness.ts codex path/to/codex`.
 * The pretended model calls the harness's shell tool once and then answers. Exits with 1 when a
 * call is incomplete or no prompt extends the one before. The programs are several hundred
 * megabytes in all, so no test job fetches them by itself.
 */
import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { HarnessName, HarnessSetup } from "../../adapters/harness-adapter.ts";
import { harnessAdapters } from "../../adapters/harness-adapters.ts";
import { asArray, asRecord, asString } from "../../sidecar/dialects/json-value.ts";
import { startTestSidecar } from "../e2e/sidecar-support.ts";
import { type EngineRequest, startScriptedEngine } from "./scripted-engine.ts";
import { type EngineAnswer, toolResultCount, vllmScript } from "./vllm-script.ts";

const prompt = "Run echo hi then say done";

const commands: Partial<Record<HarnessName, (setup: HarnessSetup) => readonly string[]>> = {
  codex: ({ args }) => [
    "exec",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    ...args,
    prompt,
  ],
  "claude-code": () => ["-p", "--dangerously-skip-permissions", prompt],
  opencode: () => ["run", "--title", "x", prompt],
  "qwen-code": ({ args }) => [...args, "-y", "-p", prompt],
};

function answer(request: EngineRequest): EngineAnswer {
  const names = (asArray(request.json["tools"]) ?? []).map((tool) =>
    asString(asRecord(asRecord(tool)?.["function"])?.["name"]),
  );
  const shell = names.find((name) =>
    /^(exec_command|Bash|bash|run_shell_command)$/.test(name ?? ""),
  );
  if (shell === undefined || toolResultCount(request) > 0) return { content: "All done here." };
  const input =
    shell === "exec_command" ? { cmd: "echo hi" } : { command: "echo hi", description: "say hi" };
  const call = { id: "call_1", name: shell, arguments: JSON.stringify(input) };
  return { reasoning: "I should run it", content: "Running it. ", toolCalls: [call] };
}

async function run(program: string, args: readonly string[], setup: HarnessSetup): Promise<number> {
  const home = await mkdtemp(join(tmpdir(), "try-harness-"));
  for (const { path, content } of setup.files) {
    const file = join(home, path.replace(/^~\//, ""));
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, content);
  }
  const env = { PATH: process.env["PATH"] ?? "", HOME: home, IS_SANDBOX: "1", ...setup.env };
  const child = spawn(program, args, {
    cwd: home,
    env,
    stdio: ["ignore", "inherit", "inherit"],
    timeout: 120_000,
  });
  const code = await new Promise<number>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (status) => resolve(status ?? 1));
  });
  await rm(home, { recursive: true, force: true });
  return code;
}

const [name, program] = process.argv.slice(2);
const command = commands[name as HarnessName];
if (command === undefined || program === undefined) {
  console.error(`usage: try-harness.ts (${Object.keys(commands).join(" | ")}) PROGRAM`);
  process.exit(2);
}
const engine = await startScriptedEngine(vllmScript({ answer }));
const sidecar = await startTestSidecar([engine.url]);
const setup = harnessAdapters[name as HarnessName].setUp({
  baseUrl: sidecar.url,
  apiKey: "key",
  model: "toy",
});
const exitCode = await run(program, command(setup), setup);
await sidecar.close();
await engine.close();

let before: number[] = [];
let isGood = exitCode === 0 && sidecar.calls.length > 1;
for (const [index, call] of sidecar.calls.entries()) {
  const promptIds = [...(call.promptIds ?? [])];
  const extendsLast = index === 0 || before.every((id, place) => promptIds[place] === id);
  const [choice] = call.choices;
  before = [...promptIds, ...(choice?.responseIds ?? [])];
  isGood &&= choice?.complete === true && call.delivered && extendsLast;
  console.log(
    `call ${index}: ${call.dialect}, ${promptIds.length} prompt ids, ${choice?.responseIds?.length ?? 0} response ids,`,
    `${choice?.complete === true ? "complete" : choice?.incompleteReason}, ${call.delivered ? "delivered" : "not delivered"},`,
    `${extendsLast ? "extends" : "does not extend"} the one before; dropped: ${call.droppedRequestParts.join(", ")}`,
  );
}
console.log(isGood ? "good" : "NOT good", `(exit code ${exitCode})`);
process.exitCode = isGood ? 0 : 1;
