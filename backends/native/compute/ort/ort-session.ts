import ort from "onnxruntime-node";
import { OutriggerError } from "../../../../core/outrigger-error.ts";

export type OrtDevice = "cpu" | "webgpu" | "cuda";

export interface OrtSessionOptions {
  readonly device: OrtDevice;
  /** Threads within one operator. */
  readonly threads: number;
}

export interface OrtSession {
  /** Runs once; with `outputs`, results are written into those tensors' memory. */
  run(
    inputs: Readonly<Record<string, ort.Tensor>>,
    outputs: Readonly<Record<string, ort.Tensor>>,
  ): Promise<void>;
  close(): Promise<void>;
}

function sessionError(device: OrtDevice, cause: unknown): OutriggerError {
  const detail = cause instanceof Error ? cause.message : String(cause);
  return new OutriggerError("compute-unavailable", `onnxruntime on ${device}: ${detail}`, {
    origin: "backend",
    hint:
      device === "cuda"
        ? "Remove onnxruntime-node-install=skip from .npmrc and run `npm rebuild onnxruntime-node`, or choose --compute ort-cpu."
        : "Choose --compute ort-cpu.",
    cause,
  });
}

function runError(device: OrtDevice, cause: unknown): OutriggerError {
  const detail = cause instanceof Error ? cause.message : String(cause);
  return new OutriggerError("compute-failed", `onnxruntime on ${device}: ${detail}`, {
    origin: "backend",
    hint: "If memory ran out, use shorter or fewer rows at a time.",
    cause,
  });
}

/**
 * Opens a model. The device is one that the session must have: ONNX Runtime refuses to create a
 * session whose execution provider it cannot load, so there is no silent fall-back to the CPU.
 */
export async function openOrtSession(
  model: Uint8Array,
  options: OrtSessionOptions,
): Promise<OrtSession> {
  let session: ort.InferenceSession;
  try {
    session = await ort.InferenceSession.create(model, {
      executionProviders: [options.device],
      intraOpNumThreads: options.threads,
      interOpNumThreads: 1,
      executionMode: "sequential",
      graphOptimizationLevel: "all",
      // Sizes differ from run to run, so a remembered plan would not fit the next one.
      enableMemPattern: false,
      logSeverityLevel: 3,
      // Idle pool threads must not burn the cores that the harnesses run on.
      extra: { session: { intra_op: { allow_spinning: "0" } } },
    });
  } catch (cause) {
    throw sessionError(options.device, cause);
  }
  return {
    async run(inputs, outputs) {
      try {
        await session.run(inputs, outputs);
      } catch (cause) {
        throw runError(options.device, cause);
      }
    },
    close: () => session.release(),
  };
}
