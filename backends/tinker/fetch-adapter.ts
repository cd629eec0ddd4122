import { execFile } from "node:child_process";
import { mkdir, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TinkerClient } from "./tinker-client.ts";

/**
 * Fetches sampler weights (`tinker://MODEL/sampler_weights/NAME`) as a PEFT adapter directory with
 * the given name; it is there whole or not at all. The server sends a gzipped tar, which the
 * system's `tar` unpacks.
 *
 * @throws OutriggerError `adapter-unusable` (backend) where the archive is no LoRA adapter
 */
export async function fetchAdapter(
  client: Pick<TinkerClient, "download">,
  samplerPath: string,
  directory: string,
  name: string,
  signal?: AbortSignal,
): Promise<string> {
  const target = join(directory, name);
  if (await isThere(join(target, "adapter_config.json"))) return target;
  const parts = /^tinker:\/\/([^/]+)\/sampler_weights\/([^/]+)$/.exec(samplerPath);
  if (parts === null)
    throw unusable(samplerPath, "its path is not tinker://MODEL/sampler_weights/NAME");
  const archive = await client.download(
    `training_runs/${parts[1]}/checkpoints/${parts[2]}/archive`,
    signal,
  );
  const temporary = join(directory, `.${name}.tmp`);
  await rm(temporary, { recursive: true, force: true });
  await mkdir(temporary, { recursive: true });
  const file = join(temporary, "archive.tar.gz");
  await writeFile(file, archive);
  try {
    await promisify(execFile)("tar", ["-xzf", file, "-C", temporary, "--no-same-owner"]);
  } catch (cause) {
    throw unusable(samplerPath, `tar cannot unpack it: ${(cause as Error).message}`, cause);
  }
  await rm(file);
  for (const part of ["adapter_config.json", "adapter_model.safetensors"]) {
    if (!(await isThere(join(temporary, part)))) throw unusable(samplerPath, `it has no ${part}`);
  }
  await rename(temporary, target);
  return target;
}

const isThere = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    () => false,
  );

const unusable = (path: string, message: string, cause?: unknown): OutriggerError =>
  new OutriggerError("adapter-unusable", `${path} cannot be given to vLLM: ${message}`, {
    origin: "backend",
    hint: "backend.engines needs a server that trains LoRA and serves archives, such as SkyRL's.",
    ...(cause !== undefined && { cause }),
  });
