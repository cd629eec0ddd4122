import { type FileHandle, open } from "node:fs/promises";
import { endianness } from "node:os";
import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import { writeDurably } from "../../../runtime/durable-files.ts";
import { bfloat16ToFloat32, float16ToFloat32, float32ToBfloat16 } from "./float-formats.ts";
import type { NamedWeights, Tensor } from "./named-weights.ts";

export interface SafetensorsFile {
  /** Every tensor as float32, whatever the file held. */
  readonly tensors: NamedWeights;
  readonly metadata: Readonly<Record<string, string>>;
}

/** Integer and byte tensors (attention masks, position ids of old exports) are no weights. */
const bytesPerElement = { F64: 8, F32: 4, F16: 2, BF16: 2 } as const;
type Dtype = keyof typeof bytesPerElement;

const maxHeaderBytes = 100_000_000;
/** Node reads at most 2 GiB at once. */
const chunkBytes = 1 << 30;

const entrySchema = z.object({
  dtype: z.string(),
  shape: z.array(z.int().nonnegative()),
  data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]),
});
const headerSchema = z.record(z.string(), z.unknown());
const metadataSchema = z.record(z.string(), z.string());

const invalid = (path: string, message: string, cause?: unknown): OutriggerError =>
  new OutriggerError("safetensors-invalid", `${path}: ${message}`, {
    origin: "user",
    hint: "The file is damaged, cut short or not in safetensors format; fetch or write it again.",
    ...(cause === undefined ? {} : { cause }),
  });

interface Entry {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly start: number;
  readonly end: number;
}

/**
 * Reads a safetensors file (https://github.com/huggingface/safetensors#format): 8 bytes of header
 * length, a JSON header, then the tensors, little-endian. F32, F16, BF16 and F64 become float32.
 */
export async function readSafetensors(path: string): Promise<SafetensorsFile> {
  let file: FileHandle;
  try {
    file = await open(path, "r");
  } catch (cause) {
    throw new OutriggerError(
      "model-file-missing",
      `cannot open ${path}: ${(cause as Error).message}`,
      {
        origin: "user",
        hint: "A model directory holds config.json, tokenizer.json and model.safetensors.",
        cause,
      },
    );
  }
  try {
    const { size } = await file.stat();
    const { header, dataStart } = await readHeader(file, path, size);
    const { entries, metadata } = parseHeader(header, path, size - dataStart);
    const tensors = new Map<string, Tensor>();
    for (const entry of entries) tensors.set(entry.name, await readTensor(file, entry, dataStart));
    return { tensors, metadata };
  } finally {
    await file.close();
  }
}

async function readHeader(
  file: FileHandle,
  path: string,
  size: number,
): Promise<{ header: unknown; dataStart: number }> {
  if (size < 8) throw invalid(path, `${size} bytes are too few for a safetensors file`);
  const prefix = await readRange(file, 0, 8);
  const headerBytes = Number(new DataView(prefix.buffer).getBigUint64(0, true));
  if (headerBytes > maxHeaderBytes || 8 + headerBytes > size) {
    throw invalid(path, `the header claims ${headerBytes} bytes, the file has ${size}`);
  }
  const text = new TextDecoder().decode(await readRange(file, 8, headerBytes));
  try {
    return { header: JSON.parse(text) as unknown, dataStart: 8 + headerBytes };
  } catch (cause) {
    throw invalid(path, "the header is not JSON", cause);
  }
}

function parseHeader(
  json: unknown,
  path: string,
  dataBytes: number,
): { entries: Entry[]; metadata: Record<string, string> } {
  const header = headerSchema.safeParse(json);
  if (!header.success) throw invalid(path, "the header is not a JSON object");
  const { __metadata__: rawMetadata, ...rest } = header.data;
  const metadata = metadataSchema.safeParse(rawMetadata ?? {});
  if (!metadata.success) throw invalid(path, "__metadata__ is not a map of strings");
  const entries = Object.entries(rest).map(([name, value]) =>
    parseEntry(name, value, path, dataBytes),
  );
  return { entries, metadata: metadata.data };
}

function parseEntry(name: string, value: unknown, path: string, dataBytes: number): Entry {
  const parsed = entrySchema.safeParse(value);
  if (!parsed.success) throw invalid(path, `tensor ${name}: ${z.prettifyError(parsed.error)}`);
  const { dtype, shape, data_offsets } = parsed.data;
  if (!(dtype in bytesPerElement)) {
    throw new OutriggerError(
      "model-unsupported",
      `${path}: tensor ${name} has dtype ${dtype}; F32, F16, BF16 and F64 are read`,
      { origin: "user", hint: "Convert the checkpoint to bfloat16 or float32 first." },
    );
  }
  const [start, end] = data_offsets;
  const elements = shape.reduce((count, n) => count * n, 1);
  const wanted = elements * bytesPerElement[dtype as Dtype];
  if (end > dataBytes || end - start !== wanted) {
    throw invalid(
      path,
      `tensor ${name} ${dtype} [${shape.join(", ")}] needs ${wanted} bytes, its range is ${start}-${end} of ${dataBytes}`,
    );
  }
  return { name, dtype: dtype as Dtype, shape, start, end };
}

async function readTensor(file: FileHandle, entry: Entry, dataStart: number): Promise<Tensor> {
  const bytes = await readRange(file, dataStart + entry.start, entry.end - entry.start);
  return { shape: entry.shape, data: toFloat32(bytes, entry.dtype) };
}

function toFloat32(bytes: Uint8Array<ArrayBuffer>, dtype: Dtype): Float32Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = bytes.byteLength / bytesPerElement[dtype];
  if (dtype === "F32" && endianness() === "LE") return new Float32Array(bytes.buffer);
  const out = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    if (dtype === "F32") out[i] = view.getFloat32(i * 4, true);
    else if (dtype === "F64") out[i] = view.getFloat64(i * 8, true);
    else if (dtype === "F16") out[i] = float16ToFloat32(view.getUint16(i * 2, true));
    else out[i] = bfloat16ToFloat32(view.getUint16(i * 2, true));
  }
  return out;
}

/** A fresh, aligned buffer with exactly these bytes. */
async function readRange(
  file: FileHandle,
  position: number,
  length: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(new ArrayBuffer(length));
  let done = 0;
  while (done < length) {
    const part = Math.min(chunkBytes, length - done);
    const { bytesRead } = await file.read(bytes, done, part, position + done);
    if (bytesRead === 0) throw new Error(`the file ended at byte ${position + done}`);
    done += bytesRead;
  }
  return bytes;
}

export interface WriteSafetensorsOptions {
  /** Stored element type; the default F32 keeps every bit. BF16 rounds to nearest even. */
  readonly dtype?: "F32" | "BF16";
  /** Hugging Face transformers refuse a file whose metadata lacks `format`; it defaults to "pt". */
  readonly metadata?: Readonly<Record<string, string>>;
}

/** Writes a safetensors file atomically and durably. */
export async function writeSafetensors(
  path: string,
  tensors: NamedWeights,
  options: WriteSafetensorsOptions = {},
): Promise<void> {
  const dtype = options.dtype ?? "F32";
  const header: Record<string, unknown> = {
    __metadata__: { format: "pt", ...options.metadata },
  };
  let offset = 0;
  const names = [...tensors.keys()].sort();
  for (const name of names) {
    const { shape, data } = tensors.get(name) as Tensor;
    const end = offset + data.length * bytesPerElement[dtype];
    header[name] = { dtype, shape, data_offsets: [offset, end] };
    offset = end;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  // Padded with spaces so that the tensors start on an 8-byte boundary.
  const prefix = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(0x20);
  prefix.set(json, 8);
  new DataView(prefix.buffer).setBigUint64(0, BigInt(prefix.length - 8), true);
  await writeDurably(path, async (file) => {
    await writeAll(file, prefix);
    for (const name of names) {
      await writeAll(file, elementBytes((tensors.get(name) as Tensor).data, dtype));
    }
  });
}

function elementBytes(data: Float32Array, dtype: "F32" | "BF16"): Uint8Array {
  if (dtype === "F32" && endianness() === "LE") {
    return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  }
  const bytes = new Uint8Array(data.length * bytesPerElement[dtype]);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < data.length; i++) {
    const value = data[i] as number;
    if (dtype === "F32") view.setFloat32(i * 4, value, true);
    else view.setUint16(i * 2, float32ToBfloat16(value), true);
  }
  return bytes;
}

async function writeAll(file: FileHandle, bytes: Uint8Array): Promise<void> {
  let done = 0;
  while (done < bytes.length) {
    const part = Math.min(chunkBytes, bytes.length - done);
    const { bytesWritten } = await file.write(bytes, done, part);
    done += bytesWritten;
  }
}
