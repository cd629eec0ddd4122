#!/usr/bin/env node
// The installed executable: compiled code when it is there (`npm ci` builds it), else the sources
// through tsx. OUTRIGGER_SOURCE=1 asks for the sources.
import { existsSync } from "node:fs";

const compiled = new URL("../dist/bin/main.js", import.meta.url);
if (existsSync(compiled) && process.env.OUTRIGGER_SOURCE !== "1") {
  await import(compiled.href);
} else {
  const { register } = await import("tsx/esm/api");
  register();
  await import("./main.ts");
}
