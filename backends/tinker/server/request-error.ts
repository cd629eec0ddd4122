import { OutriggerError } from "../../../core/outrigger-error.ts";

/** HTTP statuses of the errors that a client makes. */
export const statusOfReason: Readonly<Record<string, 400 | 401 | 404 | 409 | 413 | 429 | 503>> = {
  "bad-request": 400,
  unauthenticated: 401,
  "not-found": 404,
  conflict: 409,
  "body-too-large": 413,
  "too-many-models": 429,
  "engine-closed": 503,
  "queue-full": 503,
};

export const badInput = (message: string): OutriggerError =>
  new OutriggerError("bad-request", message, { origin: "user" });

export const notFound = (message: string): OutriggerError =>
  new OutriggerError("not-found", message, { origin: "user" });

export const conflict = (message: string): OutriggerError =>
  new OutriggerError("conflict", message, { origin: "user" });
