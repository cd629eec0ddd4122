import type { IncomingMessage, ServerResponse } from "node:http";
import type { SidecarMetrics } from "./metrics.ts";

export interface Readiness {
  readonly ready: boolean;
  /** Why not, one short reason each; empty when ready. */
  readonly problems: readonly string[];
}

/** Answers `path`, one of `controlPaths`. */
export type ControlRoutes = (
  path: string,
  request: IncomingMessage,
  response: ServerResponse,
) => Promise<void>;

/** Liveness, readiness and metrics; no identity needed. */
export function controlRoutes(
  metrics: () => SidecarMetrics,
  readiness: () => Readiness,
): ControlRoutes {
  return async (path, request, response) => {
    request.resume();
    if (path === "/metrics") {
      const text = await metrics().text();
      response.writeHead(200, { "content-type": metrics().contentType }).end(text);
      return;
    }
    const state = path === "/readyz" ? readiness() : undefined;
    response
      .writeHead(state?.ready === false ? 503 : 200, { "content-type": "application/json" })
      .end(JSON.stringify(state ?? { status: "ok" }));
  };
}
