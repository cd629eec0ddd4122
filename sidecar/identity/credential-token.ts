import type { IncomingHttpHeaders } from "node:http";

/** Compact JWT: three base64url parts, the first of which is a JSON object. */
const looksLikeToken = /^eyJ[\w-]*\.[\w-]+\.[\w-]+$/;

/** The capability token among the credentials of a request, if there is one. */
export function credentialToken(headers: IncomingHttpHeaders): string | undefined {
  const own = headers["x-outrigger-token"];
  if (typeof own === "string") return own;
  const { authorization } = headers;
  if (authorization !== undefined) {
    const bearer = /^bearer\s+(\S+)$/i.exec(authorization)?.[1];
    if (bearer !== undefined && looksLikeToken.test(bearer)) return bearer;
  }
  const apiKey = headers["x-api-key"] ?? headers["api-key"];
  return typeof apiKey === "string" && looksLikeToken.test(apiKey) ? apiKey : undefined;
}
