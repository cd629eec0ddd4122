import { Metadata, type ServiceError, type StatusObject, status } from "@grpc/grpc-js";
import { z } from "zod";
import { type ErrorOrigin, OutriggerError } from "../../core/outrigger-error.ts";

const metadataKey = "outrigger-error-bin";

const errorSchema = z.object({
  reason: z.string(),
  origin: z.enum(["harness", "sidecar", "engine", "controller", "cluster", "backend", "user"]),
  hint: z.string().optional(),
  retryable: z.boolean(),
});

const codes: Readonly<Record<string, status>> = {
  "version-mismatch": status.FAILED_PRECONDITION,
  "checkpoint-missing": status.NOT_FOUND,
  unauthenticated: status.UNAUTHENTICATED,
  cancelled: status.CANCELLED,
  "engine-closed": status.UNAVAILABLE,
};

/** An error as a gRPC status: reason, origin and hint travel in the trailing metadata. */
export function toGrpcStatus(error: unknown): StatusObject {
  const metadata = new Metadata();
  if (!(error instanceof OutriggerError)) {
    const details = error instanceof Error ? error.message : String(error);
    return { code: status.INTERNAL, details, metadata };
  }
  const { reason, origin, hint, retryable } = error;
  metadata.set(metadataKey, Buffer.from(JSON.stringify({ reason, origin, hint, retryable })));
  const fallback = origin === "user" ? status.INVALID_ARGUMENT : status.INTERNAL;
  return { code: codes[reason] ?? fallback, details: error.message, metadata };
}

/** What the backend said, or what happened to the connection: then the same call may be repeated. */
export function fromGrpcError(error: ServiceError, address: string): OutriggerError {
  const packed = error.metadata?.get(metadataKey)[0];
  if (packed !== undefined) {
    const parsed = errorSchema.safeParse(JSON.parse(packed.toString()));
    if (parsed.success) {
      const { reason, origin, hint, retryable } = parsed.data;
      // To whoever calls the backend, a failure in it is the backend's, whatever part it was.
      const seen: ErrorOrigin = origin === "user" ? "user" : "backend";
      return new OutriggerError(reason, error.details, {
        origin: seen,
        retryable,
        cause: error,
        ...(hint === undefined ? {} : { hint }),
      });
    }
  }
  const isGone =
    error.code === status.UNAVAILABLE ||
    error.code === status.DEADLINE_EXCEEDED ||
    error.code === status.CANCELLED;
  return new OutriggerError(
    isGone ? "backend-unavailable" : "backend-failed",
    `native backend at ${address}: ${error.details || error.message}`,
    {
      origin: "backend",
      hint: isGone
        ? "The backend's process is down or restarting; its log says why."
        : "See the backend's log.",
      retryable: isGone,
      cause: error,
    },
  );
}
