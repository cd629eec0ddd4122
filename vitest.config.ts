import { defineConfig } from "vitest/config";

// Pure and contract tests share worker threads without isolation: with many small files this is
// an order of magnitude faster. Tests that start processes keep isolation.
export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "unit",
          include: [
            "{core,runtime,sidecar,controller,backends,adapters,bin,examples}/**/*.test.ts",
            "test/{contract,golden,architecture,conformance}/**/*.test.ts",
          ],
          pool: "threads",
          isolate: false,
          testTimeout: 120_000,
        },
      },
      {
        test: {
          name: "e2e",
          include: ["test/{e2e,docs}/**/*.test.ts"],
          pool: "forks",
          fileParallelism: false,
          globalSetup: ["test/global-setup.ts"],
          testTimeout: 300_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
});
