/** Whose call it is. */
export interface Identity {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly mode: "train" | "eval";
  /** Where it came from; for logs and metrics. */
  readonly source: "token" | "path" | "binding" | "session";
  readonly sessionId?: string;
}

export interface IdentityRefusal {
  /** Stable and kebab-case. */
  readonly reason: string;
  readonly message: string;
  readonly status: 401 | 403 | 404 | 503;
}

export type IdentityDecision =
  | { readonly kind: "known"; readonly identity: Identity }
  | { readonly kind: "refused"; readonly refusal: IdentityRefusal };

export interface Binding {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly mode: "train" | "eval";
}
