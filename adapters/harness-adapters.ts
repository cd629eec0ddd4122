import { claudeCodeAdapter } from "./claude-code/claude-code-adapter.ts";
import { codexAdapter } from "./codex/codex-adapter.ts";
import type { HarnessAdapter, HarnessName } from "./harness-adapter.ts";
import { miniSweAgentAdapter } from "./mini-swe-agent/mini-swe-agent-adapter.ts";
import { opencodeAdapter } from "./opencode/opencode-adapter.ts";
import { openhandsAdapter } from "./openhands/openhands-adapter.ts";
import { qwenCodeAdapter } from "./qwen-code/qwen-code-adapter.ts";

export const harnessAdapters: Readonly<Record<HarnessName, HarnessAdapter>> = {
  codex: codexAdapter,
  "claude-code": claudeCodeAdapter,
  opencode: opencodeAdapter,
  "qwen-code": qwenCodeAdapter,
  "mini-swe-agent": miniSweAgentAdapter,
  openhands: openhandsAdapter,
};
