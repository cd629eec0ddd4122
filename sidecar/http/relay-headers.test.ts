import { describe, expect, it } from "vitest";
import { engineRequestHeaders, harnessResponseHeaders, rawHeader } from "./relay-headers.ts";

describe("headers for the engine", () => {
  it("keeps order, case and duplicates", () => {
    const raw = ["X-B", "1", "anthropic-beta", "a", "x-b", "2", "anthropic-beta", "b"];
    expect(engineRequestHeaders(raw, undefined)).toEqual([...raw, "accept-encoding", "identity"]);
  });

  it.each([
    ["Authorization", "Bearer secret"],
    ["X-Api-Key", "secret"],
    ["api-key", "secret"],
    ["x-outrigger-token", "secret"],
    ["Host", "sidecar"],
    ["Content-Length", "3"],
    ["Accept-Encoding", "zstd,gzip"],
    ["Transfer-Encoding", "chunked"],
    ["Keep-Alive", "timeout=5"],
    ["Proxy-Authorization", "secret"],
  ])("never forwards %s", (name, value) => {
    expect(engineRequestHeaders([name, value, "accept", "*/*"], undefined)).toEqual([
      "accept",
      "*/*",
      "accept-encoding",
      "identity",
    ]);
  });

  it("removes what Connection names, and gives the engine its own credential", () => {
    const raw = ["Connection", "close, X-Hop", "x-hop", "1", "x-kept", "2"];
    expect(engineRequestHeaders(raw, "key")).toEqual([
      "x-kept",
      "2",
      "accept-encoding",
      "identity",
      "authorization",
      "Bearer key",
    ]);
  });
});

describe("headers for the harness", () => {
  const raw = [
    "Retry-After",
    "7",
    "x-ratelimit-remaining-tokens",
    "1",
    "Set-Cookie",
    "a=1",
    "Set-Cookie",
    "b=2",
    "Connection",
    "keep-alive",
    "Transfer-Encoding",
    "chunked",
    "Content-Type",
    "application/json",
    "Content-Encoding",
    "gzip",
  ];
  it("passes everything but hop-by-hop, in order", () => {
    expect(harnessResponseHeaders(raw)).toEqual([
      ...raw.slice(0, 8),
      "Content-Type",
      "application/json",
      "Content-Encoding",
      "gzip",
    ]);
  });

  it("removes what the engine's Connection names", () => {
    const named = ["Connection", "keep-alive, X-Hop", "x-hop", "1", "x-kept", "2"];
    expect(harnessResponseHeaders(named)).toEqual(["x-kept", "2"]);
  });

  it("replaces a type, drops the encoding of a decoded body, sets the length", () => {
    const replace = { "content-type": "text/event-stream" };
    expect(harnessResponseHeaders(raw, { decoded: true, replace, contentLength: 5 })).toEqual([
      ...raw.slice(0, 8),
      "content-type",
      "text/event-stream",
      "content-length",
      "5",
    ]);
  });

  it("finds a header whatever its case", () => {
    expect(rawHeader(raw, "content-type")).toBe("application/json");
    expect(rawHeader(raw, "content-typo")).toBeUndefined();
  });
});
