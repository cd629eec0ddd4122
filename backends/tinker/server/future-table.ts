import { createHash } from "node:crypto";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import { conflict, notFound, statusOfReason } from "./request-error.ts";

type Json = Readonly<Record<string, unknown>>;

export type FutureState =
  | { readonly kind: "pending" }
  | { readonly kind: "done"; readonly result: Json }
  | { readonly kind: "failed"; readonly message: string; readonly isUsers: boolean };

interface Entry {
  readonly id: string;
  state: FutureState;
  readonly settled: Promise<void>;
}

export interface FutureTable {
  /**
   * Starts `job` and gives the future's id. A known `key` (a model and its sequence id) gives the
   * first call's future again if the body is the same, and is refused if it is not.
   */
  start(key: string | undefined, body: unknown, job: () => Promise<Json>): string;
  /** The future that a call with this key and body has already; refuses another body. */
  known(key: string, body: unknown): string | undefined;
  /** Waits up to `holdMs` for the result. */
  wait(id: string, holdMs: number, signal: AbortSignal): Promise<FutureState>;
  /** Forgets a model's sequence ids. */
  forget(keyPrefix: string): void;
}

/** Results that can still be read; older ones are forgotten. */
const maxResults = 2_000;

export function createFutureTable(newId: () => string): FutureTable {
  const entries = new Map<string, Entry>();
  const byKey = new Map<string, { readonly id: string; readonly hash: string }>();

  const prune = (): void => {
    if (entries.size <= maxResults) return;
    for (const [id, { state }] of entries) {
      if (entries.size <= maxResults) return;
      if (state.kind !== "pending") entries.delete(id);
    }
  };

  const hashOf = (body: unknown): string =>
    createHash("sha256").update(JSON.stringify(body)).digest("hex");

  const find = (key: string, hash: string): string | undefined => {
    const known = byKey.get(key);
    if (known === undefined || known.hash === hash) return known?.id;
    throw conflict(`${key} was sent before with another body`);
  };

  return {
    known: (key, body) => find(key, hashOf(body)),
    start: (key, body, job) => {
      const hash = hashOf(body);
      const known = key === undefined ? undefined : find(key, hash);
      if (known !== undefined) return known;
      const id = newId();
      const settled = job().then(
        (result) => {
          entry.state = { kind: "done", result };
        },
        (error: unknown) => {
          entry.state = failureOf(error);
        },
      );
      const entry: Entry = { id, state: { kind: "pending" }, settled };
      entries.set(id, entry);
      if (key !== undefined) byKey.set(key, { id, hash });
      prune();
      return id;
    },
    wait: async (id, holdMs, signal) => {
      const entry = entries.get(id);
      if (entry === undefined) throw notFound(`there is no future ${id} (any more)`);
      if (entry.state.kind !== "pending") return entry.state;
      let timer: NodeJS.Timeout | undefined;
      let stop = (): void => undefined;
      const limit = new Promise<void>((resolve) => {
        stop = resolve;
        timer = setTimeout(resolve, holdMs);
        signal.addEventListener("abort", stop, { once: true });
      });
      await Promise.race([entry.settled, limit]);
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
      return entry.state;
    },
    forget: (keyPrefix) => {
      for (const key of byKey.keys()) if (key.startsWith(keyPrefix)) byKey.delete(key);
    },
  };
}

function failureOf(error: unknown): FutureState {
  const message = error instanceof Error ? error.message : String(error);
  const isUsers = error instanceof OutriggerError && error.reason in statusOfReason;
  return { kind: "failed", message, isUsers };
}
