// Bundles the sidecar into one file that needs nothing but Node: dist/sidecar.mjs, or the path given.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/**
 * Of undici only the connections to engines are needed. Its entry brings fetch, WebSocket and caches
 * along, a quarter of the file, and Node compiles a module as a whole before it runs.
 */
const undiciConnections = {
  name: "undici-connections",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^undici$/ }, () => ({ path: "undici", namespace: "connections" }));
    onLoad({ filter: /^undici$/, namespace: "connections" }, () => ({
      contents: `exports.Client = require("undici/lib/dispatcher/client.js");
exports.Pool = require("undici/lib/dispatcher/pool.js");`,
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
  plugins: [undiciConnections],
  // Dependencies in CommonJS call `require` for Node's own modules.
  banner: {
    js: 'import { createRequire as __createRequire } from "node:module"; const require = __createRequire(import.meta.url);',
  },
  logLevel: "warning",
});
