/**
 * Secrets that are known by their form. Each source is a regular expression whose matching time is
 * linear in the text: it starts at a boundary (see `secretExpression`), repeats are bounded or
 * consume one character class greedily with nothing after that could fail, and nothing nests.
 * A group named `keep` at the start of a match is not part of the secret.
 */
export const secretPatterns: Readonly<Record<string, string>> = {
  "private-key":
    '-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----END)[^"]){0,20000}(?:-----END [A-Z ]{0,40}-----)?',
  jwt: "eyJ[A-Za-z0-9_-]{8,4000}\\.eyJ[A-Za-z0-9_-]{4,4000}\\.[A-Za-z0-9_-]{8,4000}",
  "api-key": "(?:sk|pk|rk)[-_](?:[a-z0-9]{2,12}[-_]){0,3}[A-Za-z0-9_-]{16,400}",
  "aws-key-id": "(?:AKIA|ASIA|AGPA|AIDA|AROA|AIPA|ANPA|ANVA)[A-Z0-9]{16}(?![A-Z0-9])",
  "github-token": "(?:gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{22,255})",
  "gitlab-token": "gl(?:pat|ptt|dt|rt|soat)-[A-Za-z0-9_-]{20,255}",
  "slack-token": "xox[abeprs]-[A-Za-z0-9-]{10,255}",
  "google-key": "AIza[A-Za-z0-9_-]{35}",
  "hugging-face-token": "hf_[A-Za-z0-9]{30,255}",
  "registry-token": "(?:npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,1000})",
  bearer: "(?<keep1>[Bb]earer[ \\t]{1,4})[A-Za-z0-9._~+/=-]{16,4000}",
  "basic-auth": "(?<keep2>[Bb]asic[ \\t]{1,4})[A-Za-z0-9+/=]{16,4000}",
  "url-password":
    "(?<keep3>[a-z][a-z0-9+.-]{1,20}://[^\\s:@/\"'\\\\]{0,100}:)[^\\s@/\"'\\\\]{1,200}(?=@)",
  assignment:
    "(?<keep4>[A-Za-z0-9_.-]{0,40}?(?:[Aa][Pp][Ii][_-]?[Kk][Ee][Yy]|[Ss][Ee][Cc][Rr][Ee][Tt]|[Pp][Aa][Ss][Ss][Ww](?:[Oo][Rr])?[Dd]|[Aa][Cc][Cc][Ee][Ss][Ss][_-]?[Tt][Oo][Kk][Ee][Nn]|[Aa][Uu][Tt][Hh][_-]?[Tt][Oo][Kk][Ee][Nn]|[Pp][Rr][Ii][Vv][Aa][Tt][Ee][_-]?[Kk][Ee][Yy])[A-Za-z0-9_-]{0,40}[\"']?[ \\t]{0,4}(?:=|:)[ \\t]{0,4}[\"']?)(?![\\s\"'\\\\,;{}()\\[\\]<>$])[^\\s\"'\\\\,;{}()\\[\\]<>]{6,400}",
};

/** Names of JSON members whose text is a secret whatever its form. */
export const secretMembers =
  /^(?:(?:x-)?api[-_]?key|(?:proxy-)?authorization|passw(?:or)?d|(?:client[-_]?|aws[-_]?)?secret(?:[-_]?access)?(?:[-_]?key)?|(?:access|refresh|auth|id|bearer|session)[-_]?token|private[-_]?key|credentials?)$/i;

/** All patterns as one expression, one named group per pattern (`-` becomes `_`). */
export function secretExpression(): RegExp {
  const alternatives = Object.entries(secretPatterns).map(
    ([name, source]) => `(?<${name.replaceAll("-", "_")}>${source})`,
  );
  return new RegExp(`(?<![A-Za-z0-9_-])(?:${alternatives.join("|")})`, "g");
}
