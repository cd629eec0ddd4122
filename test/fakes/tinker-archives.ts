import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import type { FetchRoutes } from "../../backends/tinker/server/start-tinker-server.ts";

/**
 * The archives of a server that trains LoRA, before one that trains in full: the adapter names the
 * sampler weights that it stands for. As SkyRL's, the route redirects to the archive itself.
 */
export function withArchives(inner: FetchRoutes): FetchRoutes {
  return async (request, env) => {
    const { pathname, origin } = new URL(request.url);
    const match = /training_runs\/([^/]+)\/checkpoints\/([^/]+)\/(archive|download)$/.exec(
      pathname,
    );
    if (match === null) return inner(request, env);
    const [, model, name, kind] = match;
    if (kind === "archive") {
      const location = origin + pathname.replace(/archive$/, "download");
      return new Response(null, { status: 302, headers: { location } });
    }
    return new Response(await archiveOf(`tinker://${model}/sampler_weights/${name}`));
  };
}

async function archiveOf(path: string): Promise<ArrayBuffer> {
  const directory = await mkdtemp(join(tmpdir(), "archive-"));
  try {
    const config = { peft_type: "LORA", r: 4, sampler_path: path };
    await writeFile(join(directory, "adapter_config.json"), JSON.stringify(config));
    await writeFile(join(directory, "adapter_model.safetensors"), "weights");
    const names = ["adapter_config.json", "adapter_model.safetensors"];
    const file = join(directory, "archive.tar.gz");
    await promisify(execFile)("tar", ["-czf", file, "-C", directory, ...names]);
    return Uint8Array.from(await readFile(file)).buffer;
  } finally {
    await rm(directory, { recursive: true });
  }
}
