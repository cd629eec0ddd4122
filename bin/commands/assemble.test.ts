import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { assembleCommand } from "./assemble.ts";

const call = {
  callId: "c1",
  rolloutId: "r",
  attemptId: "a",
  requestId: "q1",
  choiceIndex: 0,
  promptIds: [0],
  responseIds: [1, 2, 3],
  logprobs: [-0.5, -0.25, -0.1],
  policyVersion: 0,
  startedAt: 1,
  finishedAt: 2,
  delivered: true,
  complete: true,
  finishReason: "stop",
  usage: { promptTokens: 1, completionTokens: 3 },
};

let folder: string;
const at = (name: string) => join(folder, name);

async function write(name: string, ...lines: (object | string)[]): Promise<string> {
  const text = lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line)));
  await writeFile(at(name), `${text.join("\n")}\n`);
  return at(name);
}

async function assemble(...args: string[]): Promise<void> {
  const command = assembleCommand().exitOverride();
  await command.parseAsync([...args, "--out", at("samples.jsonl")], { from: "user" });
}

async function readSamples(): Promise<unknown[]> {
  const text = await readFile(at("samples.jsonl"), "utf8");
  return text.split("\n").flatMap((line) => (line === "" ? [] : [JSON.parse(line) as unknown]));
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "assemble-"));
});
afterEach(async () => {
  process.exitCode = undefined;
  await rm(at("samples.jsonl"), { force: true });
});
afterAll(() => rm(folder, { recursive: true }));

describe("outrigger assemble", () => {
  it("turns a file of calls into a file of samples and a report", async () => {
    const path = await write("calls.jsonl", `\uFEFF${JSON.stringify(call)}`, "", call);
    await assemble(path, "--report", at("report.json"));
    expect(await readSamples()).toEqual([
      {
        rolloutId: "r",
        attemptId: "a",
        tokenIds: [0, 1, 2, 3],
        lossMask: [0, 1, 1, 1],
        samplingLogprobs: [null, -0.5, -0.25, -0.1],
        policyVersions: [null, 0, 0, 0],
        callIds: ["c1"],
      },
    ]);
    const report = JSON.parse(await readFile(at("report.json"), "utf8")) as object;
    expect(report).toMatchObject({ total: { calls: { records: 2, duplicates: 1, trained: 1 } } });
  });

  it("says that there are no calls, and claims no coverage", async () => {
    const said = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    await assemble(await write("empty.jsonl", ""), "--report", at("empty.json"));
    expect(said.mock.calls).toEqual([["no calls\n"]]);
    said.mockRestore();
    const report = JSON.parse(await readFile(at("empty.json"), "utf8")) as object;
    expect(report).toMatchObject({ logprobCoverage: null, rewardCoverage: null });
  });

  it("names the file and the line of a bad call, and writes nothing", async () => {
    const path = await write("bad.jsonl", call, { ...call, responseIds: [1.5] });
    await expect(assemble(path)).rejects.toThrowError(/bad\.jsonl: line 2: responseIds\[0\]/);
    await expect(readSamples()).rejects.toThrowError(/ENOENT/);
  });

  it("says which file cannot be read", async () => {
    await expect(assemble(at("none.jsonl"))).rejects.toMatchObject({
      reason: "file-unreadable",
      origin: "user",
    });
  });

  it("writes no sample and fails when a threshold is not kept", async () => {
    const path = await write("cut.jsonl", call, { ...call, callId: "c2", logprobs: null });
    await assemble(path, "--max-incomplete", "0.1");
    expect(process.exitCode).toBe(1);
    await expect(readSamples()).rejects.toThrowError(/ENOENT/);
  });

  it("assembles accepted attempts only, where they are given", async () => {
    const path = await write("two.jsonl", call, { ...call, attemptId: "b" });
    const accepted = await write("accepted.jsonl", { rolloutId: "r", attemptId: "b" });
    await assemble(path, "--accepted", accepted);
    expect(await readSamples()).toMatchObject([{ attemptId: "b" }]);
    const twice = await write("twice.jsonl", { rolloutId: "r", attemptId: "b" }, call);
    await expect(assemble(path, "--accepted", twice)).rejects.toThrowError(
      /line 2: rollout r has two accepted attempts/,
    );
  });

  it("checks reward coverage against a file of rewards", async () => {
    const path = await write("calls2.jsonl", call);
    const rewards = await write("rewards.jsonl", { rolloutId: "r", reward: null });
    await assemble(path, "--rewards", rewards, "--min-reward-coverage", "1");
    expect(process.exitCode).toBe(1);
    await expect(assemble(path, "--min-reward-coverage", "1")).rejects.toThrowError(/--rewards/);
  });

  it("absorbs drift with a tokenizer", async () => {
    const tokenizer = {
      model: { type: "WordLevel", vocab: { a: 0, b: 1, c: 2, d: 3, cd: 4, e: 5 }, unk_token: "a" },
      decoder: { type: "Fuse" },
      added_tokens: [],
      normalizer: null,
      pre_tokenizer: null,
      post_processor: null,
    };
    await write("tokenizer.json", tokenizer);
    await write("tokenizer_config.json", { tokenizer_class: "PreTrainedTokenizerFast" });
    const next = {
      ...call,
      callId: "c2",
      requestId: "q2",
      startedAt: 3,
      promptIds: [0, 1, 4, 5],
      responseIds: [1],
      logprobs: [-1],
      usage: { promptTokens: 4, completionTokens: 1 },
    };
    const path = await write("drift.jsonl", call, next);
    await assemble(path, "--tokenizer", folder);
    expect(await readSamples()).toMatchObject([{ lossMask: [0, 1, 0, 0, 1] }]);
    await assemble(path);
    expect(await readSamples()).toHaveLength(2);
    await expect(assemble(path, "--tokenizer", at("nowhere"))).rejects.toMatchObject({
      reason: "tokenizer-unreadable",
    });
  });

  it.each([
    [["--max-row-tokens", "1.5"], /integer/],
    [["--max-incomplete", "7"], /share from 0 to 1/],
    [["--over-length", "squash"], /truncate/],
  ])("refuses %j", async (flags, message) => {
    const command = assembleCommand()
      .exitOverride()
      .configureOutput({ writeErr: () => undefined });
    await expect(command.parseAsync(["x", ...flags], { from: "user" })).rejects.toThrowError(
      message,
    );
  });
});
