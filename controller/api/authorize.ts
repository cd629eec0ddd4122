import type { Context } from "hono";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Capability, CapabilityScope, TokenVerifier } from "../../runtime/capability-token.ts";

/**
 * Refuses a request whose bearer token does not have one of the scopes. A token of one rollout
 * (`reward`, `event`) reaches that rollout and attempt only; `admin` reaches everything.
 *
 * @returns what the token says
 */
export async function authorize(
  context: Context,
  verifier: TokenVerifier,
  scopes: readonly CapabilityScope[],
  target?: { readonly rolloutId: string; readonly attemptId: string },
): Promise<Capability> {
  const header = context.req.header("authorization") ?? "";
  const token = /^Bearer (.+)$/i.exec(header)?.[1] ?? context.req.header("x-api-key");
  if (token === undefined) throw refused("token-missing", "this needs a token");
  const verdict = await verifier.verify(token);
  if (!verdict.ok) throw refused(`token-${verdict.reason}`, `the token is ${verdict.reason}`);
  const { capability } = verdict;
  if (capability.scopes.includes("admin")) return capability;
  const isInScope = capability.scopes.some((scope) => scopes.includes(scope));
  const isTarget =
    target !== undefined &&
    capability.rolloutId === target.rolloutId &&
    capability.attemptId === target.attemptId;
  if (!isInScope || !isTarget) {
    throw refused("token-forbidden", "the token does not allow this");
  }
  return capability;
}

function refused(reason: string, message: string): OutriggerError {
  return new OutriggerError(reason, message, {
    origin: "user",
    hint: "Send `Authorization: Bearer <token>`; an administrator's token is in the run's directory.",
  });
}
