// Bundles the sidecar into one file that needs nothing but Node: dist/sidecar.mjs, or the path given.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/**
 * What is imported instead of modules that bring along what a sidecar has no use for. Node compiles
 * a module as a whole before it runs, so that what is never called delays the start too.
 */
const narrowed = {
  // An import of it opens standard input and output, and reads all else that it has.
  "node:process": "export default process;",
  // Only the connections to engines: no fetch, WebSocket, caches.
  undici: `exports.Client = require("undici/lib/dispatcher/client.js");
exports.Pool = require("undici/lib/dispatcher/pool.js");`,
  // Only what is counted here: no metrics of the process, no pushing, no cluster.
  "prom-client": `exports.Registry = require("prom-client/lib/registry.js");
exports.Counter = require("prom-client/lib/counter.js");
exports.Gauge = require("prom-client/lib/gauge.js");
exports.Histogram = require("prom-client/lib/histogram.js");`,
};

const narrowedImports = {
  name: "narrowed-imports",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /./ }, ({ path, kind }) =>
      path in narrowed && kind === "import-statement" ? { path, namespace: "narrowed" } : undefined,
    );
    onLoad({ filter: /./, namespace: "narrowed" }, ({ path }) => ({
      contents: narrowed[path],
      loader: "js",
      resolveDir: root,
    }));
  },
};

await build({
  absWorkingDir: root,
  entryPoints: ["bin/sidecar-image.ts"],
  outfile: process.argv[2] ?? "dist/sidecar.mjs",
  bundle: true,
  platform: "node",
  target: "node20",
  format: "esm",
  minify: true,
  keepNames: true,
  legalComments: "none",
  define: { OUTRIGGER_VERSION: JSON.stringify(version) },
  plugins: [narrowedImports],
  // For services of gRPC itself, which a sidecar does not serve.
  external: ["@grpc/proto-loader"],
  // Dependencies in CommonJS call `require` for Node's own modules.
  banner: {
    js: 'import { createRequire as __createRequire } from "node:module"; const require = __createRequire(import.meta.url);',
  },
  logLevel: "warning",
});
