import type { TokenVerdict } from "../../runtime/capability-token.ts";
import type { PathIdentity } from "../http/route-request.ts";
import type { Binding, Identity, IdentityDecision, IdentityRefusal } from "./identity.ts";

/** What an adapter's session rule found in the headers of a deployed agent. */
export interface SessionFacts {
  /** Unique over harnesses, e.g. `codex:0199…`. */
  readonly sessionId: string;
}

export interface IdentityFacts {
  readonly path: PathIdentity;
  /** Verdict on the token of the path or of a header; undefined when none was given. */
  readonly token: { readonly where: "path" | "header"; readonly verdict: TokenVerdict } | undefined;
  /** This sidecar's own rollout, when the whole pod is one. */
  readonly binding: Binding | undefined;
  readonly session: SessionFacts | undefined;
  /** Without a controller there is nobody to sign tokens: paths name rollouts as they are. */
  readonly trustsPath: boolean;
  /** One rollout per session of a deployed agent. */
  readonly bindsSessions: boolean;
}

const wholeRange = "*";

/**
 * Whose call it is: a token, the proxy path, the sidecar's binding, a session; else refused. There
 * is no shared default: calls of unknown origin would end up in each other's trajectories.
 */
export function decideIdentity(facts: IdentityFacts): IdentityDecision {
  const sessionId = facts.session?.sessionId;
  const { token, path, binding } = facts;
  if (token?.verdict.ok === true) {
    const { capability } = token.verdict;
    if (!capability.scopes.includes("call"))
      return refused("token-scope", "the token does not allow model calls (scope call)", 403);
    const named = path.kind === "rollout" ? path : undefined;
    const isWide = capability.rolloutId === wholeRange;
    if (isWide && named === undefined)
      return refused("token-without-rollout", "the token is for no single rollout", 403);
    if (!isWide && named !== undefined && named.rolloutId !== capability.rolloutId)
      return refused("token-of-other-rollout", "the token is for another rollout", 403);
    return known(
      {
        rolloutId: isWide ? (named?.rolloutId ?? "") : capability.rolloutId,
        attemptId:
          capability.attemptId === wholeRange ? (named?.attemptId ?? "0") : capability.attemptId,
        mode: isWide ? (named?.mode ?? capability.mode) : capability.mode,
      },
      "token",
      sessionId,
    );
  }
  if (path.kind === "token" && facts.trustsPath)
    return known({ rolloutId: path.token, attemptId: "0", mode: "train" }, "path", sessionId);
  if (path.kind === "rollout" && (facts.trustsPath || binding?.rolloutId === path.rolloutId))
    return known(path, "path", sessionId);
  if (token !== undefined && (token.where === "path" || token.verdict.reason === "expired"))
    return refusedToken(token.verdict.reason, token.where);
  if (path.kind === "rollout")
    return refused("unknown-rollout", "the path names a rollout that this key is not for", 401);
  if (binding !== undefined) return known(binding, "binding", sessionId);
  if (facts.bindsSessions && facts.session !== undefined)
    return known(
      { rolloutId: `session:${facts.session.sessionId}`, attemptId: "0", mode: "train" },
      "session",
      sessionId,
    );
  if (token !== undefined) return refusedToken(token.verdict.reason, token.where);
  return refused(
    "unknown-identity",
    "this call belongs to no rollout: give the rollout's token as the API key, or put /r/<token> before /v1 in the base URL",
    401,
  );
}

function refusedToken(reason: string, where: "path" | "header"): IdentityDecision {
  const message =
    reason === "expired"
      ? "the rollout's token has expired: the rollout is over, or its limit was set too short"
      : `the token given ${where === "path" ? "after /r/" : "as the API key"} is not one of this controller's (${reason})`;
  return refused(`token-${reason}`, message, 401);
}

function known(
  { rolloutId, attemptId, mode }: Binding,
  source: Identity["source"],
  sessionId: string | undefined,
): IdentityDecision {
  const identity: Identity =
    sessionId === undefined
      ? { rolloutId, attemptId, mode, source }
      : { rolloutId, attemptId, mode, source, sessionId };
  return { kind: "known", identity };
}

function refused(
  reason: string,
  message: string,
  status: IdentityRefusal["status"],
): IdentityDecision {
  return { kind: "refused", refusal: { reason, message, status } };
}
