import * as z from "zod";
import { OutriggerError } from "../core/outrigger-error.ts";

export type ConfigSource = "default" | "file" | "environment" | "flag";

export interface LoadedConfig<T> {
  readonly config: T;
  /** One line per value: `path = value  (source)`, secrets as `***`; for `--print-config`. */
  print(): string;
}

export interface ConfigLayers {
  /** YAML or JSON file. */
  readonly file?: string | undefined;
  /** Environment of the process; `OUTRIGGER_<PREFIX>_<PATH>` in upper snake case sets a value. */
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly environmentPrefix: string;
  /** Values given as flags, by dotted path; undefined means not given. */
  readonly flags: Readonly<Record<string, unknown>>;
  /** The option that sets a value, by dotted path: for what is said of one that is missing. */
  readonly optionNames?: ReadonlyMap<string, string>;
}

type Tree = { [key: string]: unknown };

/**
 * Reads one strict configuration: defaults < file < environment < flags. Unknown keys fail, and
 * every problem is listed at once with its path and where the value came from.
 * Mark a secret with `.meta({ secret: true })`.
 */
export async function loadConfig<S extends z.ZodObject>(
  schema: S,
  layers: ConfigLayers,
): Promise<LoadedConfig<z.output<S>>> {
  const sources = new Map<string, ConfigSource>();
  const tree: Tree = {};
  if (layers.file !== undefined) {
    // Most processes have no file, and need no parser of YAML at their start.
    const { readConfigFile } = await import("./read-config-file.ts");
    overlay(tree, readConfigFile(layers.file), "file", sources);
  }
  for (const [path, leaf] of leaves(schema)) {
    const text = layers.environment[environmentName(layers.environmentPrefix, path)];
    if (text !== undefined) setAt(tree, path, readText(text, leaf), "environment", sources);
  }
  for (const [path, value] of Object.entries(layers.flags)) {
    if (value !== undefined) setAt(tree, path, value, "flag", sources);
  }
  const parsed = schema.safeParse(tree);
  if (!parsed.success) throw configError(parsed.error, tree, sources, layers);
  const config = parsed.data as z.output<S>;
  return { config, print: () => printConfig(schema, config as Tree, sources) };
}

/** `OUTRIGGER_SIDECAR_SPOOL_MAX_BYTES` for prefix `SIDECAR` and path `spool.maxBytes`. */
export function environmentName(prefix: string, path: string): string {
  const snake = path
    .split(".")
    .map((part) => part.replace(/([a-z0-9])([A-Z])/g, "$1_$2").toUpperCase())
    .join("_");
  return `OUTRIGGER_${prefix}_${snake}`;
}

function configError(
  error: z.ZodError,
  tree: Tree,
  sources: ReadonlyMap<string, ConfigSource>,
  layers: ConfigLayers,
): OutriggerError {
  const { file } = layers;
  const lines = error.issues.map((issue) => {
    const path = issue.path.join(".");
    if (issue.code === "invalid_type" && valueAt(tree, issue.path) === undefined) {
      return `  ${path}: is missing; ${waysToSet(path, layers)}`;
    }
    const source = sources.get(path);
    const where =
      source === "file" ? ` (in ${file})` : source === undefined ? "" : ` (from ${source})`;
    return `  ${path === "" ? "(top level)" : path}: ${issue.message}${where}`;
  });
  return new OutriggerError(
    "config-invalid",
    `invalid configuration${file ? ` in ${file}` : ""}:\n${lines.join("\n")}`,
    {
      origin: "user",
      hint: "A value comes from its option, else from its environment variable, else from the file of --config.",
    },
  );
}

function waysToSet(path: string, { optionNames, environmentPrefix }: ConfigLayers): string {
  const option = optionNames?.get(path);
  const variable = environmentName(environmentPrefix, path);
  return `give ${option === undefined ? "" : `${option}, or `}${variable}, or ${path} in a file`;
}

function valueAt(tree: Tree, path: readonly PropertyKey[]): unknown {
  let value: unknown = tree;
  for (const key of path) value = (value as Record<PropertyKey, unknown> | undefined)?.[key];
  return value;
}

function overlay(
  into: Tree,
  from: Tree,
  source: ConfigSource,
  sources: Map<string, ConfigSource>,
  prefix = "",
): void {
  for (const [key, value] of Object.entries(from)) {
    const path = prefix === "" ? key : `${prefix}.${key}`;
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      const child = (into[key] ??= {}) as Tree;
      overlay(child, value as Tree, source, sources, path);
    } else {
      into[key] = value;
      sources.set(path, source);
    }
  }
}

function setAt(
  tree: Tree,
  path: string,
  value: unknown,
  source: ConfigSource,
  sources: Map<string, ConfigSource>,
): void {
  const keys = path.split(".");
  const last = keys.pop() as string;
  let node = tree;
  for (const key of keys) node = (node[key] ??= {}) as Tree;
  node[last] = value;
  sources.set(path, source);
}

/**
 * Environment text to a value: JSON, the text itself (a key may look like a number), or a list with
 * commas between, whichever the setting takes first; JSON, and its complaint, where it takes none.
 */
function readText(text: string, leaf: z.ZodType): unknown {
  const list = text.split(",").map((part) => part.trim());
  const readings = [parseScalar(text), text, list];
  return readings.find((value) => leaf.safeParse(value).success) ?? readings[0];
}

function parseScalar(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function innerObject(type: unknown): z.ZodObject | undefined {
  let current = type as { def?: { innerType?: unknown; type?: string } } | undefined;
  while (current?.def?.innerType !== undefined) current = current.def.innerType as typeof current;
  return current?.def?.type === "object" ? (current as unknown as z.ZodObject) : undefined;
}

/** Each setting's dotted path and what it takes. */
function leaves(schema: z.ZodObject, prefix = ""): [path: string, type: z.ZodType][] {
  return Object.entries(schema.shape).flatMap(([key, type]): [string, z.ZodType][] => {
    const path = prefix === "" ? key : `${prefix}.${key}`;
    const inner = innerObject(type);
    return inner === undefined ? [[path, type as z.ZodType]] : leaves(inner, path);
  });
}

function isSecret(schema: z.ZodObject, path: readonly string[]): boolean {
  const [key, ...rest] = path;
  const type = key === undefined ? undefined : (schema.shape[key] as z.ZodType | undefined);
  if (type === undefined) return false;
  if (rest.length > 0) {
    const inner = innerObject(type);
    return inner !== undefined && isSecret(inner, rest);
  }
  let current: unknown = type;
  while (current !== undefined) {
    const meta = (current as z.ZodType).meta?.() as { secret?: boolean } | undefined;
    if (meta?.secret === true) return true;
    current = (current as { def?: { innerType?: unknown } }).def?.innerType;
  }
  return false;
}

function printConfig(
  schema: z.ZodObject,
  config: Tree,
  sources: ReadonlyMap<string, ConfigSource>,
): string {
  return leaves(schema)
    .map(([path]) => {
      const keys = path.split(".");
      let value: unknown = config;
      for (const key of keys) value = (value as Tree | undefined)?.[key];
      const shown =
        value === undefined ? "(unset)" : isSecret(schema, keys) ? "***" : JSON.stringify(value);
      return `${path} = ${shown}  (${sources.get(path) ?? "default"})`;
    })
    .join("\n");
}
