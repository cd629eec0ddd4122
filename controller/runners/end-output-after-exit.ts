import type { ChildProcess } from "node:child_process";

const graceMs = 1_000;

/**
 * Lets a child's output end soon after the child, whoever holds it open: a process that the child
 * left in a session of its own would keep `close` from ever coming.
 */
export function endOutputAfterExit(child: ChildProcess): void {
  child.once("exit", () => {
    const timer = setTimeout(() => {
      child.stdout?.destroy();
      child.stderr?.destroy();
    }, graceMs);
    child.once("close", () => clearTimeout(timer));
  });
}
