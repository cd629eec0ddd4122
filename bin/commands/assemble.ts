import { createReadStream, createWriteStream } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { Tokenizer } from "@huggingface/tokenizers";
import { Command, InvalidArgumentError, Option } from "commander";
import type { AssembledSample } from "../../core/assembly/assembled-sample.ts";
import type { OverLengthPolicy } from "../../core/assembly/assembly-options.ts";
import { type BuildSamplesOptions, buildSamples } from "../../core/assembly/build-samples.ts";
import type { CapturedCall } from "../../core/assembly/captured-call.ts";
import type { DecodeIds } from "../../core/assembly/classify-break.ts";
import { formatCaptureReport } from "../../core/capture-report-text.ts";
import {
  type CaptureThresholds,
  findThresholdBreaches,
} from "../../core/capture-report-thresholds.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { encodeSample } from "../../core/samples-jsonl/encode-sample.ts";
import { parseCallLine } from "../../core/samples-jsonl/parse-call-line.ts";

interface AssembleFlags extends CaptureThresholds {
  readonly out?: string;
  readonly report?: string;
  readonly accepted?: string;
  readonly rewards?: string;
  readonly tokenizer?: string;
  readonly includeSideCalls?: boolean;
  readonly maxRowTokens?: number;
  readonly overLength: OverLengthPolicy;
  readonly maxDriftTokens: number;
}

/** `outrigger assemble calls.jsonl > samples.jsonl`. */
export function assembleCommand(): Command {
  return new Command("assemble")
    .argument("<calls>", "calls, one JSON object a line; - for standard input")
    .description(
      "Turns recorded calls into training samples: samples go to standard output, the capture report to standard error. No sample is written when a threshold is not kept; the exit code is then 1, and 2 for input that cannot be read.",
    )
    .option("--out <file>", "write the samples to a file instead of standard output")
    .option("--report <file>", "write the capture report, per rollout and in sum, as JSON")
    .option(
      "--accepted <file>",
      'accepted attempts, lines of {"rolloutId", "attemptId"}; without it every attempt is assembled, each for itself',
    )
    .option("--rewards <file>", 'known rewards, lines of {"rolloutId", "reward"}, for coverage')
    .option("--include-side-calls", "train the calls that are marked as side calls")
    .option("--max-row-tokens <count>", "longest row", parseCount)
    .addOption(
      new Option("--over-length <policy>", "what to do with longer rows")
        .choices(["truncate", "drop-call", "drop-row"])
        .default("truncate"),
    )
    .option("--tokenizer <folder>", "tokenizer.json of the policy: absorb drift, name breaks")
    .option("--max-drift-tokens <count>", "tokens given up per drifted response", parseCount, 4)
    .option("--max-incomplete <share>", "threshold: incomplete calls", parseShare)
    .option("--max-zero-capture <share>", "threshold: rollouts with nothing to train", parseShare)
    .option("--max-lost-tokens <share>", "threshold: sampled tokens given up", parseShare)
    .option("--max-breaks <share>", "threshold: breaks between turns", parseShare)
    .option("--min-logprob-coverage <share>", "threshold: tokens with logprobs", parseShare)
    .option("--min-reward-coverage <share>", "threshold: rollouts with a reward", parseShare)
    .action(assemble);
}

async function assemble(path: string, flags: AssembleFlags): Promise<void> {
  const calls: CapturedCall[] = [];
  const input = path === "-" ? process.stdin : createReadStream(path);
  for await (const { text, line } of readLines(input, path)) {
    const call = inFile(path, () => parseCallLine(text, line));
    if (call !== undefined) calls.push(call);
  }
  const options = await readOptions(flags);
  const { samples, report } = buildSamples(calls, options);
  process.stderr.write(formatCaptureReport(report));
  if (flags.report !== undefined) {
    await writeFile(flags.report, `${JSON.stringify(report, null, 2)}\n`);
  }
  const breaches = findThresholdBreaches(report, flags);
  if (breaches.length > 0) {
    for (const breach of breaches) process.stderr.write(`threshold not kept: ${breach.message}\n`);
    process.exitCode = 1;
    return;
  }
  await writeSamples(samples, flags.out);
}

async function readOptions(flags: AssembleFlags): Promise<BuildSamplesOptions> {
  const { accepted, rewards, tokenizer, maxRowTokens } = flags;
  if (flags.minRewardCoverage !== undefined && rewards === undefined) {
    throw new OutriggerError("rewards-missing", "--min-reward-coverage needs --rewards", {
      origin: "user",
    });
  }
  return {
    includeSideCalls: flags.includeSideCalls ?? false,
    overLength: flags.overLength,
    maxDriftTokens: flags.maxDriftTokens,
    ...(maxRowTokens === undefined ? {} : { maxRowTokens }),
    ...(tokenizer === undefined ? {} : { decode: await openDecoder(tokenizer) }),
    ...(accepted === undefined ? {} : { acceptedAttempts: await readAccepted(accepted) }),
    ...(rewards === undefined ? {} : { rewardedRollouts: await readRewarded(rewards) }),
  };
}

async function readAccepted(path: string): Promise<Map<string, string>> {
  const accepted = new Map<string, string>();
  for await (const { text, line } of readLines(createReadStream(path), path)) {
    const { rolloutId, attemptId } = parseFields(path, text, line);
    if (typeof rolloutId !== "string" || typeof attemptId !== "string") {
      throw badLine(path, line, 'expected {"rolloutId": text, "attemptId": text}');
    }
    if ((accepted.get(rolloutId) ?? attemptId) !== attemptId) {
      throw badLine(path, line, `rollout ${rolloutId} has two accepted attempts`);
    }
    accepted.set(rolloutId, attemptId);
  }
  return accepted;
}

async function readRewarded(path: string): Promise<Set<string>> {
  const rewarded = new Set<string>();
  for await (const { text, line } of readLines(createReadStream(path), path)) {
    const { rolloutId, reward } = parseFields(path, text, line);
    if (typeof rolloutId !== "string" || (typeof reward !== "number" && reward !== null)) {
      throw badLine(path, line, 'expected {"rolloutId": text, "reward": number or null}');
    }
    if (reward !== null) rewarded.add(rolloutId);
  }
  return rewarded;
}

function parseFields(path: string, text: string, line: number): Record<string, unknown> {
  try {
    return Object(JSON.parse(text)) as Record<string, unknown>;
  } catch (cause) {
    throw badLine(path, line, `not JSON: ${(cause as Error).message}`);
  }
}

async function openDecoder(folder: string): Promise<DecodeIds> {
  const read = async (name: string): Promise<object> => {
    const path = join(folder, name);
    try {
      return JSON.parse(await readFile(path, "utf8")) as object;
    } catch (cause) {
      throw new OutriggerError("tokenizer-unreadable", `${path}: ${(cause as Error).message}`, {
        origin: "user",
        hint: "--tokenizer names the folder of the policy, with tokenizer.json and tokenizer_config.json.",
        cause,
      });
    }
  };
  const tokenizer = new Tokenizer(
    await read("tokenizer.json"),
    await read("tokenizer_config.json"),
  );
  return (ids) =>
    ids.length === 0
      ? ""
      : tokenizer.decode([...ids], {
          skip_special_tokens: false,
          clean_up_tokenization_spaces: false,
        });
}

interface Line {
  readonly text: string;
  readonly line: number;
}

/** The lines that are not blank, numbered from 1. */
async function* readLines(input: Readable, path: string): AsyncGenerator<Line> {
  let line = 0;
  try {
    for await (const raw of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
      line++;
      const text = line === 1 ? raw.replace(/^\uFEFF/, "") : raw;
      if (text.trim() !== "") yield { text, line };
    }
  } catch (cause) {
    if (cause instanceof OutriggerError) throw cause;
    throw new OutriggerError("file-unreadable", `${path}: ${(cause as Error).message}`, {
      origin: "user",
      cause,
    });
  }
}

async function writeSamples(
  samples: readonly AssembledSample[],
  path: string | undefined,
): Promise<void> {
  const lines = function* () {
    for (const sample of samples) yield `${encodeSample(sample)}\n`;
  };
  const out: Writable = path === undefined ? process.stdout : createWriteStream(path);
  try {
    await pipeline(lines, out, { end: path !== undefined });
  } catch (cause) {
    throw new OutriggerError(
      "samples-unwritable",
      `${path ?? "standard output"}: ${(cause as Error).message}`,
      { origin: "user", cause },
    );
  }
}

function inFile<T>(path: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    if (!(error instanceof OutriggerError)) throw error;
    const { reason, origin, hint } = error;
    throw new OutriggerError(reason, `${path}: ${error.message}`, {
      origin,
      ...(hint === undefined ? {} : { hint }),
    });
  }
}

function badLine(path: string, line: number, problem: string): OutriggerError {
  return new OutriggerError("line-invalid", `${path}: line ${line}: ${problem}`, {
    origin: "user",
  });
}

function parseCount(text: string): number {
  const count = Number(text);
  if (!Number.isSafeInteger(count) || count < 0) {
    throw new InvalidArgumentError("expected an integer from 0 on");
  }
  return count;
}

function parseShare(text: string): number {
  const share = Number(text);
  if (text.trim() === "" || !(share >= 0 && share <= 1)) {
    throw new InvalidArgumentError("expected a share from 0 to 1");
  }
  return share;
}
