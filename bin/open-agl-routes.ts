import { randomUUID } from "node:crypto";
import type { Hono } from "hono";
import { createAglApi } from "../backends/agl/agl-api.ts";
import type { AglAccess, AglModel, AglPort, PortRequest } from "../backends/agl/agl-port.ts";
import type { AglExperiment } from "../controller/experiment/load-experiment.ts";
import type { ControllerParts } from "../controller/open-controller.ts";
import type { ServedRollouts } from "../controller/serve-experiment.ts";
import type { ExpandedRequest } from "../controller/store/expand-calls.ts";
import type { TokenVerifier } from "../runtime/capability-token.ts";
import type { Logger } from "../runtime/log.ts";

const callTokenMs = 86_400_000;
/** Holds a lease that no process of ours renews. */
const foreignOwner = "agl-client";
const foreignLeaseMs = 86_400_000;

/** Joins Agent Lightning's API and the controller's parts. */
export function openAglRoutes(
  experiment: AglExperiment,
  parts: ControllerParts,
  served: ServedRollouts,
  context: { readonly log: Logger; readonly now: () => number },
): Promise<Hono> {
  const { rollouts, service, calls, steps, ingest, sign } = parts;
  const { now, log } = context;
  const { schedule, algorithm, backend } = experiment;
  return createAglApi({
    rollouts: {
      create: (wanted) => service.create(wanted),
      get: (rolloutId) => rollouts.get(rolloutId),
      list: (states, limit) => rollouts.list({ states, limit }),
      terminal: async (after, through) => {
        const found = await rollouts.listTerminal(after, through - after);
        return found.filter(({ terminalSeq }) => (terminalSeq ?? 0) <= through);
      },
      terminalCount: () => rollouts.terminalCount(),
      annotate: (rolloutId, metadata, asChange) =>
        rollouts.annotate(rolloutId, metadata, asChange, now()),
      startAttempt: async (rolloutId) => {
        await service.startAttempt(rolloutId, foreignOwner, foreignLeaseMs);
      },
      endAttempt: (...end) => served.endAttempt(...end),
      cancel: async (rolloutId) => {
        await service.cancel(rolloutId);
      },
      remove: (rolloutId) => served.remove(rolloutId),
    },
    records: {
      requests: async (rolloutId, attemptId, withText) => {
        const found = await calls.requestsOfAttempt(rolloutId, attemptId);
        return Promise.all(
          found.map(async (request) => {
            const { requestId } = request.record;
            const text = withText ? await calls.textOfRequest(requestId) : undefined;
            return toPortRequest(request, text ?? { request: null, response: null });
          }),
        );
      },
      events: (rolloutId, attemptId) => calls.eventsOfAttempt(rolloutId, attemptId),
      attempts: (rolloutId) => calls.attemptsWithRecords(rolloutId),
      addEvent: (event) => service.addEvent(event),
    },
    gate: {
      pause: async (reason) => {
        const { holdLimitMs, drainLimitMs } = schedule;
        return (await ingest.pause({ reason, holdLimitMs, drainLimitMs })).drained;
      },
      resume: () => ingest.resume(),
      inFlight: () =>
        ingest
          .sidecars()
          .filter(({ connected }) => connected)
          .reduce((sum, { inFlight }) => sum + inFlight, 0),
    },
    facts: steps,
    authorize: (credential, access) => authorize(parts.verifier, credential, access),
    signCallToken: (rolloutId, attemptId, mode) =>
      sign({ rolloutId, attemptId, scopes: ["call"], mode, expiresAtMs: now() + callTokenMs }),
    sidecarUrls: () =>
      ingest
        .sidecars()
        .filter(({ connected }) => connected)
        .map(({ harnessUrl }) => harnessUrl),
    publishModels: (models) => {
      const policy = servedPolicy(models, backend.model);
      if (policy.endpoints.length > 0) ingest.publishPolicy(policy);
      else log.warn({ model: backend.model }, "no engine was registered under the model's name");
    },
    includesSideCalls: algorithm.includeSideCalls,
    now,
    randomId: () => randomUUID().replaceAll("-", ""),
  } satisfies AglPort);
}

/** Of several names only the first one is served: an experiment has one policy. */
function servedPolicy(models: readonly AglModel[], wanted: string | undefined) {
  const name = wanted ?? models[0]?.model ?? "policy";
  const own = models.filter(({ model }) => model === name);
  return {
    model: name,
    version: Math.max(0, ...own.map(({ version }) => version)),
    endpoints: own.map(({ endpoint, model }) => ({ url: endpoint, model })),
  };
}

async function authorize(
  verifier: TokenVerifier,
  credential: string | undefined,
  access: AglAccess,
): Promise<"allowed" | "unauthenticated" | "forbidden"> {
  if (credential === undefined) return "unauthenticated";
  const verdict = await verifier.verify(credential);
  if (!verdict.ok) return "unauthenticated";
  const { scopes, rolloutId, attemptId } = verdict.capability;
  if (scopes.includes("admin")) return "allowed";
  if (access.scope === "admin" || !scopes.includes(access.scope)) return "forbidden";
  const isOwn = access.rolloutId === rolloutId && access.attemptId === attemptId;
  return isOwn ? "allowed" : "forbidden";
}

function toPortRequest(
  { record, settings, calls }: ExpandedRequest,
  text: { readonly request: string | null; readonly response: string | null },
): PortRequest {
  const { usage, timing } = record;
  return {
    calls,
    requestId: record.requestId,
    model: settings.model,
    engine: settings.engine,
    policyVersion: Number(record.policyVersion),
    httpStatus: record.httpStatus,
    errorReason: record.errorReason,
    delivered: record.delivered,
    receivedAtMs: timing?.receivedAtMs ?? 0,
    finishedAfterMs: Number(timing?.finishedAfterUs ?? 0n) / 1000,
    usage:
      usage === undefined
        ? null
        : { promptTokens: usage.promptTokens, completionTokens: usage.completionTokens },
    requestText: text.request,
    responseText: text.response,
  };
}
