import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openOrtCompute } from "../../backends/native/compute/ort/open-ort-compute.ts";
import {
  startTinkerServer,
  type TinkerServer,
} from "../../backends/tinker/server/start-tinker-server.ts";
import { tinkerServerConfigSchema } from "../../backends/tinker/server/tinker-server-config.ts";
import { openTinkerBackend } from "../../backends/tinker/tinker-backend.ts";
import type { TrainerBackend } from "../../core/trainer-backend.ts";
import { openLog } from "../../runtime/log.ts";
import { type TinkerDialectOptions, withDialect } from "../fakes/tinker-dialect.ts";
import type { BackendUnderTest } from "./trainer-backend.ts";
import { writeSmallModel } from "./trainer-backend-model.ts";

export interface TinkerUnderTest extends BackendUnderTest {
  readonly directory: string;
  /** Ends the server as a crash would (its models are gone) and starts it at the same address. */
  restartServer(): Promise<void>;
  /** Ends the backend only, and opens it over the same journal. */
  restartBackend(): Promise<TrainerBackend>;
  /** The directory of weights and moments of the policy now. */
  statePath(): Promise<string>;
  /** Both, byte for byte. */
  state(): Promise<{ readonly weights: Buffer; readonly optimizer: Buffer }>;
}

/** A Tinker server that trains a small random model for real, and this project's client of it. */
export async function openTinkerUnderTest(
  options: TinkerDialectOptions = {},
  patienceMs = 10_000,
): Promise<TinkerUnderTest> {
  const directory = await mkdtemp(join(tmpdir(), "tinker-backend-"));
  await writeSmallModel(join(directory, "small"));
  const log = openLog({ level: "silent", process: "test" });
  const wrap = withDialect(options);
  let server: TinkerServer;
  let backend: TrainerBackend;
  const startServer = async (port: number): Promise<void> => {
    server = await startTinkerServer({
      config: tinkerServerConfigSchema.parse({
        model: join(directory, "small"),
        state: join(directory, "saved"),
        port,
        slots: 8,
        seed: 7,
        threads: 1,
        maxModels: 64,
        holdMs: 200,
      }),
      log,
      openCompute: async (model, weights) => ({
        compute: await openOrtCompute(model.config, weights, { threads: 1 }),
        reason: "the test's",
      }),
      wrap,
    });
  };
  const openBackend = async (): Promise<TrainerBackend> => {
    backend = await openTinkerBackend({
      url: server.url,
      modelDirectory: join(directory, "small"),
      journalDirectory: join(directory, "journal"),
      // So that an update is several calls.
      maxCallTokens: 64,
      retryDelayMs: 2,
      patienceMs,
      log,
    });
    return backend;
  };
  await startServer(0);
  const restartServer = async (): Promise<void> => {
    const { port } = server;
    await server.close();
    await startServer(port);
  };
  const restartBackend = async (): Promise<TrainerBackend> => {
    await backend.close();
    return openBackend();
  };
  const statePath = async (): Promise<string> => {
    const journal = JSON.parse(
      await readFile(join(directory, "journal", "tinker.json"), "utf8"),
    ) as { statePath: string };
    return join(directory, "saved", journal.statePath.replace("tinker://", ""));
  };
  return {
    backend: await openBackend(),
    directory,
    statePath,
    restartServer,
    restartBackend,
    restart: async () => {
      await restartServer();
      return restartBackend();
    },
    state: async () => {
      const folder = await statePath();
      return {
        weights: await readFile(join(folder, "model.safetensors")),
        optimizer: await readFile(join(folder, "optimizer.safetensors")),
      };
    },
    close: async () => {
      await backend.close();
      await server.close();
      await rm(directory, { recursive: true });
    },
  };
}
