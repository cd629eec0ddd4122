import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type AdapterPublisher,
  openAdapterPublisher,
} from "../../backends/vllm/adapter-publisher.ts";
import { openVllmEngine } from "../../backends/vllm/vllm-engine.ts";
import { openLog } from "../../runtime/log.ts";
import { openVllmLora, type VllmLora, type VllmLoraOptions } from "../fakes/vllm-lora.ts";

let directory: string;
let vllm: VllmLora;
let publisher: AdapterPublisher;
/** Keeps the calls of one adapter running. */
let hold: { readonly name: string; readonly until: Promise<void> } | undefined;

/** One token of whatever model is asked. */
async function openPolicy(_config: unknown, name: string) {
  const server = createServer((_request, response) => {
    void Promise.resolve(hold?.name === name ? hold.until : undefined).then(() => {
      const choices = [{ token_ids: [1], logprobs: { token_logprobs: [-0.5] } }];
      response.end(JSON.stringify({ model: name, choices }));
    });
  });
  await new Promise<void>((go) => server.listen(0, "127.0.0.1", go));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    destroy: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

async function open(options: Partial<VllmLoraOptions> = {}): Promise<void> {
  vllm = await openVllmLora({ baseModel: "base", openPolicy, ...options });
  publisher = openAdapterPublisher({
    engines: [openVllmEngine({ url: vllm.url })],
    prefix: "run-",
    checkMs: 10,
    log: openLog({ level: "silent", process: "test" }),
  });
}

const adapter = async (version: number) => {
  const name = `run-m-v${version}`;
  const path = join(directory, name);
  await mkdir(path, { recursive: true });
  await writeFile(join(path, "adapter_config.json"), "{}");
  await writeFile(join(path, "adapter_model.safetensors"), "");
  return { name, path, version };
};
const publish = async (version: number): Promise<void> =>
  publisher.publish(await adapter(version), [1, 2, 3]);

async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await new Promise((go) => setTimeout(go, 5));
}

beforeEach(async () => {
  hold = undefined;
  directory = await mkdtemp(join(tmpdir(), "adapters-"));
});
afterEach(async () => {
  await publisher.close();
  await vllm.close();
  await rm(directory, { recursive: true });
});

describe("a policy is published to vLLM", () => {
  it("under a name of its own per version, tried before it counts", async () => {
    await open();
    await publish(0);
    expect(publisher.endpoints()).toEqual([
      { url: vllm.url, model: "run-m-v0", version: 0, cacheSalt: "run-m-v0" },
    ]);
    await publish(1);
    expect(publisher.served).toMatchObject({ name: "run-m-v1", version: 1 });
    expect(vllm.sampled).toEqual(["run-m-v0", "run-m-v1"]);
  });

  it("is not served while it is still loaded, nor when it cannot be", async () => {
    let finish = (): void => undefined;
    const loading = new Promise<void>((go) => {
      finish = go;
    });
    let isSlow = false;
    await open({ whileLoading: async () => (isSlow ? loading : undefined) });
    await publish(0);
    isSlow = true;
    const second = publish(1);
    expect(publisher.served?.version).toBe(0);
    finish();
    await second;
    expect(publisher.served?.version).toBe(1);
    const nowhere = { name: "run-m-v2", path: join(directory, "nowhere"), version: 2 };
    await expect(publisher.publish(nowhere, [1])).rejects.toMatchObject({
      reason: "engine-refused",
      message: expect.stringContaining("No adapter found") as string,
    });
    expect(publisher.served?.version).toBe(1);
  });

  it("loads what is loaded already from the same place, and nothing else by that name", async () => {
    await open();
    await publish(0);
    await publisher.close();
    publisher = openAdapterPublisher({
      engines: [openVllmEngine({ url: vllm.url })],
      prefix: "run-",
      log: openLog({ level: "silent", process: "test" }),
    });
    await publish(0);
    const other = { ...(await adapter(0)), path: directory };
    await publisher.publish({ ...(await adapter(1)) }, [1]);
    await expect(publisher.publish(other, [1])).rejects.toMatchObject({ reason: "engine-refused" });
  });

  it("keeps the version before, unloads older ones, and none that a call runs with", async () => {
    await open();
    await publish(0);
    let finish = (): void => undefined;
    const over = new Promise<void>((go) => {
      finish = go;
    });
    hold = { name: "run-m-v0", until: over };
    const call = fetch(`${vllm.url}/completions`, {
      method: "POST",
      body: JSON.stringify({ model: "run-m-v0", prompt: [1] }),
    });
    await until(() => vllm.running.includes("run-m-v0"));
    for (const version of [1, 2, 3]) await publish(version);
    await until(() => vllm.events.includes("-run-m-v1"));
    expect(vllm.loaded).toEqual(["run-m-v0", "run-m-v2", "run-m-v3"]);
    finish();
    expect((await call).status).toBe(200);
    await until(() => vllm.events.includes("-run-m-v0"));
    expect(vllm.loaded).toEqual(["run-m-v2", "run-m-v3"]);
  });

  it("goes to an engine again that has restarted and knows no adapter", async () => {
    await open();
    await publish(0);
    vllm.forget();
    expect(vllm.loaded).toEqual([]);
    await until(() => vllm.loaded.includes("run-m-v0"));
  });

  it("says retryably that an engine is away", async () => {
    let isAway = false;
    await open({ fault: () => (isAway ? 503 : undefined) });
    await publish(0);
    isAway = true;
    await expect(publish(1)).rejects.toMatchObject({
      reason: "engine-unreachable",
      retryable: true,
    });
    isAway = false;
    await publish(1);
    expect(publisher.served?.version).toBe(1);
  });
});
