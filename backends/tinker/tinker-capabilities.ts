import type { BackendDescription } from "../../core/trainer-backend.ts";

/**
 * Losses that no Tinker server has are folded into one that each has (accumulate-gradient.ts);
 * docs/backends.md says what some servers leave out.
 */
export const tinkerCapabilities = {
  losses: ["ppo", "cispo", "gspo", "importance-sampling"],
  corrections: ["none", "truncate", "mask"],
  supportsKl: true,
  supportsRestore: true,
} as const satisfies Partial<BackendDescription>;
