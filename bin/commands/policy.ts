import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import process from "node:process";
import { Command } from "commander";
import type { PolicyControl } from "../../controller/api/http-api.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { askController, type ControllerAddress, controllerAt } from "../ask-controller.ts";

interface PolicyFlags {
  readonly run?: string;
  readonly url?: string;
  readonly tokenFile?: string;
  readonly json?: boolean;
}

/** `outrigger policy list|rollback`: of a run that is going on, through its controller. */
export function policyCommand(): Command {
  const command = new Command("policy").description(
    "The policy of a run that is going on: its versions, and the way back to a checkpoint.",
  );
  withController(command.command("list").description("checkpoints and rollbacks")).action(list);
  withController(
    command
      .command("rollback")
      .description("publish a checkpoint as the next version")
      .argument("<checkpoint>", "its name, as `policy list` shows it"),
  )
    .addHelpText(
      "after",
      `
Happens as soon as no update is under way, with model calls held. What was sampled and not yet
trained is dropped. Versions only grow: the checkpoint's policy gets the next number.

Example:
  outrigger policy rollback step-20 --run .outrigger/runs/my-agent-1`,
    )
    .action(rollBack);
  return command;
}

function withController(command: Command): Command {
  return command
    .option("--run <dir>", "directory of the run")
    .option("--url <url>", "HTTP API of its controller, instead")
    .option("--token-file <path>", "file with an administrator's token, for --url")
    .option("--json", "JSON instead of text");
}

async function list(flags: PolicyFlags): Promise<void> {
  const view = await ask<Awaited<ReturnType<PolicyControl["list"]>>>(flags, "/v1/policy");
  if (flags.json === true) return print(JSON.stringify(view, null, 2));
  const time = (ms: number): string => new Date(ms).toISOString();
  print(`version ${view.version} is served`);
  for (const { name, version, step, atMs, location } of view.checkpoints) {
    print(`checkpoint ${name}  version ${version}  after step ${step}  ${time(atMs)}  ${location}`);
  }
  for (const { checkpoint, fromVersion, version, atMs } of view.rollbacks) {
    print(
      `rollback   from version ${fromVersion} to ${checkpoint}, as version ${version}  ${time(atMs)}`,
    );
  }
}

async function rollBack(checkpoint: string, flags: PolicyFlags): Promise<void> {
  const { version } = await ask<{ version: number }>(flags, "/v1/policy/rollback", { checkpoint });
  print(
    flags.json === true
      ? JSON.stringify({ checkpoint, version })
      : `${checkpoint} is served as version ${version}`,
  );
}

function ask<T>(flags: PolicyFlags, path: string, body?: unknown): Promise<T> {
  return askController<T>(findController(flags), path, body);
}

function findController({ run, url, tokenFile }: PolicyFlags): ControllerAddress {
  if (url !== undefined) return controllerAt(url, tokenFile);
  if (run === undefined) {
    throw new OutriggerError("source-missing", "neither --run nor --url was given", {
      origin: "user",
      hint: "Name the run's directory with --run.",
    });
  }
  const directory = resolve(run);
  if (!existsSync(join(directory, "controller.json"))) {
    throw new OutriggerError("run-missing", `${directory} is not the directory of a run`, {
      origin: "user",
      hint: "Runs are below .outrigger/runs unless --out named another place.",
    });
  }
  const { apiUrl } = JSON.parse(readFileSync(join(directory, "controller.json"), "utf8")) as {
    apiUrl: string;
  };
  return { url: apiUrl, token: readFileSync(join(directory, "admin-token"), "utf8").trim() };
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}
