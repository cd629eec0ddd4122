import type { IncomingHttpHeaders } from "node:http";
import type { TokenVerdict, TokenVerifier } from "../../runtime/capability-token.ts";
import type { PathIdentity } from "../http/route-request.ts";
import { credentialToken } from "./credential-token.ts";
import { decideIdentity, type SessionFacts } from "./decide-identity.ts";
import type { Binding, IdentityDecision } from "./identity.ts";

export interface IdentitySources {
  /** Undefined until the controller has given its key; always undefined without one. */
  readonly verifier: TokenVerifier | undefined;
  readonly hasController: boolean;
  readonly binding: Binding | undefined;
  readonly trustsPath: boolean;
  readonly bindsSessions: boolean;
  readonly readSession: (headers: IncomingHttpHeaders) => SessionFacts | undefined;
}

/**
 * Gathers the facts for `decideIdentity`; a token seen before costs no signature check, and then,
 * as without a token, the decision is there at once.
 */
export function resolveIdentity(
  sources: IdentitySources,
  path: PathIdentity,
  headers: IncomingHttpHeaders,
): IdentityDecision | Promise<IdentityDecision> {
  const { verifier, hasController, binding, trustsPath, bindsSessions } = sources;
  const inPath = path.kind === "token" && !trustsPath ? path.token : undefined;
  const token = inPath ?? (hasController ? credentialToken(headers) : undefined);
  const decide = (verdict: TokenVerdict | undefined): IdentityDecision =>
    decideIdentity({
      path,
      token:
        verdict === undefined
          ? undefined
          : { where: inPath === undefined ? "header" : "path", verdict },
      binding,
      session: sources.readSession(headers),
      trustsPath,
      bindsSessions,
    });
  if (token === undefined) return decide(undefined);
  if (verifier === undefined) {
    const message = "the sidecar has not reached its controller yet, so it cannot check tokens";
    return {
      kind: "refused",
      refusal: { reason: "controller-unreachable", message, status: 503 },
    };
  }
  const known = verifier.peek(token);
  return known === undefined ? verifier.verify(token).then(decide) : decide(known);
}
