import { readFileSync } from "node:fs";
import { writeAtomically } from "../run-directory.ts";
import type { ProcessIdentity } from "./process-identity.ts";

/** Which child processes a session has, on disk, for the session that comes after a kill. */
export interface ChildNotes {
  /** By an earlier session. */
  readonly noted: readonly ProcessIdentity[];
  readonly note: (name: string, identity: ProcessIdentity) => void;
}

export function childNotes(file: string): ChildNotes {
  let noted: ProcessIdentity[] = [];
  try {
    noted = Object.values(
      JSON.parse(readFileSync(file, "utf8")) as Record<string, ProcessIdentity>,
    );
  } catch {
    // A new run.
  }
  const present: Record<string, ProcessIdentity> = {};
  return {
    noted,
    note: (name, identity) => {
      present[name] = identity;
      writeAtomically(file, JSON.stringify(present));
    },
  };
}
