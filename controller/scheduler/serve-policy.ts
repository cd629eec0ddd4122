import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainerBackend } from "../../core/trainer-backend.ts";
import type { IngestServer } from "../ingest/ingest-server.ts";

/** Tells the sidecars where a version of the policy is. */
export async function servePolicy(
  {
    backend,
    ingest,
  }: {
    readonly backend: Pick<TrainerBackend, "policyEndpoints">;
    readonly ingest: Pick<IngestServer, "publishPolicy">;
  },
  version: number,
): Promise<void> {
  const endpoints = await backend.policyEndpoints();
  const [first] = endpoints;
  if (first === undefined) {
    throw new OutriggerError("backend-serves-nothing", "the backend names no policy endpoint", {
      origin: "backend",
    });
  }
  ingest.publishPolicy({
    model: first.model,
    version,
    endpoints: endpoints.map(({ url, model, cacheSalt }) => ({
      url,
      model,
      ...(cacheSalt !== undefined && { cacheSalt }),
    })),
  });
}
