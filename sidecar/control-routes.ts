import { Hono } from "hono";
import type { SidecarMetrics } from "./metrics.ts";

export interface Readiness {
  readonly ready: boolean;
  /** Why not, one short reason each; empty when ready. */
  readonly problems: readonly string[];
}

/** Liveness, readiness and metrics; no identity needed. */
export function controlRoutes(metrics: () => SidecarMetrics, readiness: () => Readiness): Hono {
  const app = new Hono();
  app.get("/healthz", (c) => c.json({ status: "ok" }));
  app.get("/readyz", (c) => {
    const state = readiness();
    return c.json(state, state.ready ? 200 : 503);
  });
  app.get("/metrics", async (c) =>
    c.body(await metrics().text(), 200, { "content-type": metrics().contentType }),
  );
  return app;
}
