import { execFileSync } from "node:child_process";
import { resolve } from "node:path";

/** End-to-end tests start the executable: compile it once, so that they test what is here. */
export default function setup(): void {
  execFileSync("npm", ["run", "--silent", "build"], {
    cwd: resolve(import.meta.dirname, ".."),
    stdio: ["ignore", "inherit", "inherit"],
  });
}
