import type { BackendDescription } from "../../core/trainer-backend.ts";

/** What every Tinker server is asked for; docs/backends.md says what some of them leave out. */
export const tinkerCapabilities = {
  losses: ["importance-sampling", "ppo", "cispo"],
  corrections: ["none"],
  supportsKl: false,
  supportsRestore: true,
} as const satisfies Partial<BackendDescription>;
