import process from "node:process";
import { packageVersion } from "../runtime/package-version.ts";
import { survivePipesClosing } from "./closed-pipe.ts";
import { sidecarCommand } from "./commands/sidecar.ts";
import { reportFailure } from "./report-failure.ts";

/** Entry of the sidecar's image: the `sidecar` command alone, so that it bundles into one file. */
survivePipesClosing(true);
try {
  await sidecarCommand().version(packageVersion()).parseAsync(process.argv);
} catch (error) {
  process.exitCode = reportFailure(error);
}
