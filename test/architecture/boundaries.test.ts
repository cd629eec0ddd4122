import { readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { describe, expect, it } from "vitest";

const root = resolve(import.meta.dirname, "../..");

/** Which top-level folders each may import from; everything but core may use proto. */
const allowed: Record<string, readonly string[]> = {
  core: ["core"],
  proto: ["proto"],
  runtime: ["runtime", "core", "proto"],
  adapters: ["adapters", "runtime", "core", "proto"],
  sidecar: ["sidecar", "adapters", "runtime", "core", "proto"],
  controller: ["controller", "adapters", "runtime", "core", "proto"],
  backends: ["backends", "adapters", "runtime", "core", "proto"],
  bin: ["bin", "sidecar", "controller", "backends", "adapters", "runtime", "core", "proto"],
};

function sourceFiles(folder: string): string[] {
  return readdirSync(join(root, folder)).flatMap((name) => {
    const path = join(folder, name);
    if (statSync(join(root, path)).isDirectory()) return sourceFiles(path);
    return name.endsWith(".ts") ? [path] : [];
  });
}

/** Specifiers of static and dynamic imports and re-exports; `typeOnly` marks `import type`. */
function importsOf(file: string): { specifier: string; typeOnly: boolean; dynamic: boolean }[] {
  const text = readFileSync(join(root, file), "utf8");
  const found: { specifier: string; typeOnly: boolean; dynamic: boolean }[] = [];
  const statics = /^(?:import|export)\s+(type\s)?(?:[^"';]*?\sfrom\s+)?["']([^"']+)["']/gms;
  for (const m of text.matchAll(statics)) {
    found.push({ specifier: m[2] as string, typeOnly: m[1] !== undefined, dynamic: false });
  }
  for (const m of text.matchAll(/import\(\s*["']([^"']+)["']\s*\)/g)) {
    found.push({ specifier: m[1] as string, typeOnly: false, dynamic: true });
  }
  return found;
}

const product = Object.keys(allowed).flatMap(sourceFiles);
const isTest = (file: string): boolean => file.endsWith(".test.ts");

describe("folder directions", () => {
  it.each(Object.keys(allowed))("%s imports only what the arrows allow", (folder) => {
    const wrong = sourceFiles(folder)
      .filter((file) => !isTest(file))
      .flatMap((file) =>
        importsOf(file)
          .filter(({ specifier }) => specifier.startsWith("."))
          .map(({ specifier }) => relative(root, resolve(root, dirname(file), specifier)))
          .filter(
            (target) =>
              !(allowed[folder] as readonly string[]).includes(target.split("/")[0] as string),
          )
          .map((target) => `${file} -> ${target}`),
      );
    expect(wrong).toEqual([]);
  });

  it("core is pure: no Node module, no package but the schemas of what it parses", () => {
    const wrong = sourceFiles("core")
      .filter((file) => !isTest(file))
      .flatMap((file) =>
        importsOf(file)
          .filter(({ specifier }) => !specifier.startsWith(".") && specifier !== "zod")
          .map(({ specifier }) => `${file} -> ${specifier}`),
      );
    expect(wrong).toEqual([]);
  });
});

describe("import graph", () => {
  it("has no run-time cycle", () => {
    const edges = new Map(
      product.map((file) => [
        file,
        importsOf(file)
          .filter(
            ({ specifier, typeOnly, dynamic }) =>
              specifier.startsWith(".") && !typeOnly && !dynamic,
          )
          .map(({ specifier }) => relative(root, resolve(root, dirname(file), specifier))),
      ]),
    );
    const done = new Set<string>();
    const visit = (file: string, path: readonly string[]): readonly string[] | undefined => {
      if (path.includes(file)) return [...path.slice(path.indexOf(file)), file];
      if (done.has(file)) return undefined;
      for (const next of edges.get(file) ?? []) {
        const cycle = visit(next, [...path, file]);
        if (cycle !== undefined) return cycle;
      }
      done.add(file);
      return undefined;
    };
    for (const file of edges.keys()) expect(visit(file, [])).toBeUndefined();
  });

  it("every relative import names a file", () => {
    const missing = product.flatMap((file) =>
      importsOf(file)
        .filter(({ specifier }) => specifier.startsWith("."))
        .map(({ specifier }) => resolve(root, dirname(file), specifier))
        .filter((target) => !statSync(target, { throwIfNoEntry: false })?.isFile())
        .map((target) => `${file} -> ${relative(root, target)}`),
    );
    expect(missing).toEqual([]);
  });
});
