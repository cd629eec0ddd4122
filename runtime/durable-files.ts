import { randomBytes } from "node:crypto";
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";

/** Makes a rename or a new name in this directory survive a power loss. */
export async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/**
 * Writes a file so that its name holds either the old contents or all of the new ones: a temporary
 * file beside it, fsync, rename, fsync of the directory. A failed write leaves no temporary file.
 */
export async function writeDurably(
  path: string,
  contents: Uint8Array | string | ((file: FileHandle) => Promise<void>),
): Promise<void> {
  const temporary = `${path}.${randomBytes(6).toString("hex")}.tmp`;
  const file = await open(temporary, "wx");
  try {
    try {
      if (typeof contents === "function") await contents(file);
      else await file.writeFile(contents);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
  await syncDirectory(dirname(path));
}

/** Waits for every write to end, also when one fails, so that nothing is written afterwards. */
export async function allWritten(writes: readonly Promise<void>[]): Promise<void> {
  const results = await Promise.allSettled(writes);
  for (const result of results) if (result.status === "rejected") throw result.reason;
}
