import process from "node:process";

/**
 * Calls `onGone` when the process that started this one has died. The parent passes a pipe as
 * stdin and keeps it open; the kernel closes it even after kill -9.
 */
export function watchParent(onGone: () => void): () => void {
  const gone = (): void => {
    stop();
    onGone();
  };
  const stop = (): void => {
    process.stdin.off("end", gone);
    process.stdin.off("close", gone);
    process.stdin.off("error", gone);
    process.stdin.pause();
  };
  process.stdin.on("end", gone);
  process.stdin.on("close", gone);
  process.stdin.on("error", gone);
  process.stdin.resume();
  return stop;
}
