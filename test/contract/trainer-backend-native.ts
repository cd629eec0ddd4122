import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openOrtCompute } from "../../backends/native/compute/ort/open-ort-compute.ts";
import {
  type NativeBackend,
  type NativeBackendOptions,
  openNativeBackend,
} from "../../backends/native/native-backend.ts";
import { nativeConfigSchema } from "../../backends/native/native-config.ts";
import { type NativeProcess, startNativeProcess } from "../../backends/native/native-process.ts";
import { openLog } from "../../runtime/log.ts";
import type { BackendUnderTest } from "./trainer-backend.ts";
import { writeSmallModel } from "./trainer-backend-model.ts";

export interface NativeUnderTest extends BackendUnderTest {
  readonly backend: NativeBackend;
  readonly directory: string;
  /** The process behind `backend` now. */
  process(): NativeProcess;
  restart(): Promise<NativeBackend>;
}

/** The native backend over a small random model, in this process but over real sockets. */
export async function openNativeUnderTest(
  config: Readonly<Record<string, unknown>> = {},
  client: Omit<NativeBackendOptions, "grpcAddress"> = {},
): Promise<NativeUnderTest> {
  const directory = await mkdtemp(join(tmpdir(), "native-backend-"));
  await writeSmallModel(join(directory, "model"));
  const opened: NativeBackend[] = [];
  let native: NativeProcess;
  const start = async (): Promise<NativeBackend> => {
    native = await startNativeProcess({
      config: nativeConfigSchema.parse({
        model: join(directory, "model"),
        state: join(directory, "state"),
        slots: 8,
        threads: 1,
        seed: 7,
        ...config,
      }),
      log: openLog({ level: "silent", process: "native-backend" }),
      openCompute: async (model, weights) => ({
        compute: await openOrtCompute(model.config, weights, { threads: 1 }),
        reason: "the test's",
      }),
    });
    const backend = openNativeBackend({ grpcAddress: `127.0.0.1:${native.grpcPort}`, ...client });
    opened.push(backend);
    return backend;
  };
  return {
    backend: await start(),
    directory,
    process: () => native,
    restart: async () => {
      await native.close(0);
      return start();
    },
    close: async () => {
      for (const backend of opened) await backend.close();
      await native.close(0);
      await rm(directory, { recursive: true });
    },
  };
}
