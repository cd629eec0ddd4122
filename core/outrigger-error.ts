/** Whose fault a failure is; every error names one, so that an operator knows where to look. */
export type ErrorOrigin =
  | "harness"
  | "sidecar"
  | "engine"
  | "controller"
  | "cluster"
  | "backend"
  | "user";

export interface OutriggerErrorOptions {
  readonly origin: ErrorOrigin;
  /** What to do about it, in one sentence. */
  readonly hint?: string;
  readonly retryable?: boolean;
  readonly cause?: unknown;
}

/**
 * An error with a stable kebab-case `reason` (log line, metric label, API code) and an `origin`.
 * `user` is the origin of bad configuration and bad command lines.
 */
export class OutriggerError extends Error {
  override readonly name = "OutriggerError";
  readonly reason: string;
  readonly origin: ErrorOrigin;
  readonly hint: string | undefined;
  readonly retryable: boolean;

  constructor(reason: string, message: string, options: OutriggerErrorOptions) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.reason = reason;
    this.origin = options.origin;
    this.hint = options.hint;
    this.retryable = options.retryable ?? false;
  }
}
