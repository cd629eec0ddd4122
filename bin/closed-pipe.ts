import process from "node:process";
import type { Writable } from "node:stream";

/**
 * What happens when nobody reads the output any more (`outrigger … | head`). A command that only
 * prints has nothing left to do and ends; one that does work goes on without output.
 */
export function survivePipesClosing(goesOn: boolean, streams = outputs, end = endQuietly): void {
  for (const stream of streams) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code !== "EPIPE") throw error;
      if (!goesOn) end();
    });
  }
}

const outputs: readonly Writable[] = [process.stdout, process.stderr];

function endQuietly(): void {
  process.exit(0);
}
