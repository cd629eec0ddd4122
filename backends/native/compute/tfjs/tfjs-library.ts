import { createRequire } from "node:module";
import util from "node:util";
import { OutriggerError } from "../../../../core/outrigger-error.ts";

export type Tf = typeof import("@tensorflow/tfjs");

/** In order of preference. */
export const tfjsBackends = ["node-gpu", "node", "wasm", "js"] as const;
export type TfjsBackend = (typeof tfjsBackends)[number];

/** The name that TensorFlow.js registers each back end under. */
const registeredName: Record<TfjsBackend, string> = {
  "node-gpu": "tensorflow",
  node: "tensorflow",
  wasm: "wasm",
  js: "cpu",
};

const nativePackage: Partial<Record<TfjsBackend, string>> = {
  "node-gpu": "@tensorflow/tfjs-node-gpu",
  node: "@tensorflow/tfjs-node",
};

const unavailable = (backend: TfjsBackend, message: string, cause?: unknown): OutriggerError =>
  new OutriggerError("compute-unavailable", `TensorFlow.js ${backend}: ${message}`, {
    origin: "backend",
    hint:
      backend === "wasm" || backend === "js"
        ? "Run `npm ci` again."
        : `Run \`npm install ${nativePackage[backend]}\` (it downloads the TensorFlow library), or choose another --compute.`,
    ...(cause === undefined ? {} : { cause }),
  });

/**
 * What went wrong when a native package was required: it is not installed, or it is and the library
 * that its install script should have downloaded is not.
 */
export function describeNativeFailure(packageName: string, error: unknown): string {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  const message = error instanceof Error ? error.message : String(error);
  const firstLine = message.split("\n")[0] ?? "";
  if (code === "MODULE_NOT_FOUND" && firstLine.includes(`'${packageName}'`)) {
    return `package ${packageName} is not installed`;
  }
  return `package ${packageName} is installed, but its library does not load (${firstLine})`;
}

/** tfjs-node 4.22 still calls two functions that Node 23 removed from `util`. */
export function restoreUtilFunctions(target: Record<string, unknown>): void {
  target["isNullOrUndefined"] ??= (value: unknown): boolean =>
    value === null || value === undefined;
  target["isArray"] ??= Array.isArray;
}

/** Loads a package that registers the native "tensorflow" back end. */
function requireNative(backend: TfjsBackend, packageName: string): { isGpu: boolean } {
  restoreUtilFunctions(util as unknown as Record<string, unknown>);
  const require = createRequire(import.meta.url);
  try {
    const library = require(packageName) as {
      backend?: () => { isUsingGpuDevice?: boolean };
    };
    return { isGpu: library.backend?.().isUsingGpuDevice === true };
  } catch (cause) {
    throw unavailable(backend, describeNativeFailure(packageName, cause), cause);
  }
}

export interface TfjsLibrary {
  readonly tf: Tf;
  readonly version: string;
  readonly device: "gpu" | "cpu" | "wasm" | "js";
}

/**
 * Loads TensorFlow.js, sets one back end and asserts that it is the one in use: `setBackend`
 * answers false, or falls back, without an error. The whole package is imported, for its ops alone
 * lack the chained methods and kernels that Node needs.
 */
export async function loadTfjs(backend: TfjsBackend): Promise<TfjsLibrary> {
  const { default: tf } = await import("@tensorflow/tfjs");
  // Its advice to install tfjs-node, and tensor checks.
  tf.enableProdMode();
  const packageName = nativePackage[backend];
  let isGpu = false;
  if (packageName !== undefined) ({ isGpu } = requireNative(backend, packageName));
  if (backend === "wasm") await import("@tensorflow/tfjs-backend-wasm");
  if (backend === "node-gpu" && !isGpu) throw unavailable(backend, "it found no GPU");
  const wanted = registeredName[backend];
  try {
    await tf.setBackend(wanted);
    await tf.ready();
  } catch (cause) {
    throw unavailable(backend, cause instanceof Error ? cause.message : String(cause), cause);
  }
  if (tf.getBackend() !== wanted) {
    throw unavailable(backend, `asked for "${wanted}", but "${tf.getBackend()}" is in use`);
  }
  const devices = { "node-gpu": "gpu", node: "cpu", wasm: "wasm", js: "js" } as const;
  return { tf, version: tf.version.tfjs, device: devices[backend] };
}
