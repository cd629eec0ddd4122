import process from "node:process";
import { survivePipesClosing } from "./closed-pipe.ts";
import { goesOnUnread, runCommandLine } from "./command-line.ts";

const argv = process.argv.slice(2);
survivePipesClosing(goesOnUnread(argv));
const exitCode = await runCommandLine(argv);
if (exitCode !== undefined) process.exitCode = exitCode;
