import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { describe, expect, it } from "vitest";

const root = resolve(import.meta.dirname, "../..");
const topFolders =
  /^(?:bin|core|proto|runtime|sidecar|controller|backends|adapters|helm|examples|test|bench|docs|schema)\//;

const documents = [
  "README.md",
  ...readdirSync(join(root, "docs"), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".md"))
    .map((name) => join("docs", name)),
];

/** Paths in back-ticks that start with one of our folders, and relative link targets. */
function pathsIn(document: string): string[] {
  const text = readFileSync(join(root, document), "utf8");
  const quoted = [...text.matchAll(/`([\w./-]+)`/g)]
    .map((m) => m[1] as string)
    .filter((path) => topFolders.test(path));
  const folder = document.slice(0, document.lastIndexOf("/") + 1);
  const linked = [...text.matchAll(/\]\((?!https?:|#)([^)#\s]+)[^)]*\)/g)].map((m) =>
    join(folder, m[1] as string),
  );
  return [...quoted, ...linked];
}

describe("every path that the docs name exists", () => {
  it.each(documents)("%s", (document) => {
    const missing = pathsIn(document).filter((path) => !existsSync(join(root, path)));
    expect(missing).toEqual([]);
  });
});
