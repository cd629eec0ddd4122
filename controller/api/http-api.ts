import { Hono } from "hono";
import type { ContentfulStatusCode } from "hono/utils/http-status";
import { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";
import {
  type AttemptEndReason,
  attemptEndReasons,
} from "../../core/rollouts/attempt-end-reason.ts";
import type { TokenVerifier } from "../../runtime/capability-token.ts";
import type { SidecarView } from "../ingest/ingest-server.ts";
import type { RolloutService } from "../rollouts/rollout-service.ts";
import type { PolicyHistory } from "../scheduler/policy-keeper.ts";
import type { CallStore } from "../store/call-store.ts";
import { authorize } from "./authorize.ts";
import { toCallJson } from "./call-json.ts";

export interface HttpApiOptions {
  readonly service: RolloutService;
  readonly calls: CallStore;
  readonly verifier: TokenVerifier;
  sidecars(): readonly SidecarView[];
  /** What the run is doing; free JSON. */
  status(): Promise<Readonly<Record<string, unknown>>>;
  /** The token with which the harness of an attempt calls the model. */
  signCallToken(rolloutId: string, attemptId: string, mode: "train" | "eval"): Promise<string>;
  /** Absent where no run is trained here. */
  readonly policy: PolicyControl | undefined;
  now(): number;
  randomId(): string;
}

const states = ["queued", "running", "succeeded", "failed", "cancelled"] as const;
const listQuery = z.object({
  state: z.union([z.enum(states), z.array(z.enum(states))]).optional(),
  purpose: z.string().optional(),
  group: z.string().optional(),
  after: z.coerce.number().int().optional(),
  limit: z.coerce.number().int().min(1).max(10_000).default(500),
});
const newRollouts = z
  .array(
    z.strictObject({
      rolloutId: z
        .string()
        .regex(/^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$/)
        .optional(),
      groupId: z.string().min(1).optional(),
      mode: z.enum(["train", "eval"]).default("train"),
      purpose: z.string().min(1).default("api"),
      taskId: z.string().min(1).default("api"),
      input: z.record(z.string(), z.unknown()),
      metadata: z.record(z.string(), z.unknown()).optional(),
    }),
  )
  .min(1)
  .max(10_000);
const leaseBody = z.strictObject({
  owner: z.string().min(1),
  leaseMs: z.int().min(1000).max(86_400_000).default(60_000),
});
const endBody = z.strictObject({
  reason: z.enum(attemptEndReasons as [AttemptEndReason, ...AttemptEndReason[]]),
  reward: z.number().optional(),
  message: z.string().max(10_000).optional(),
});
const eventBody = z.strictObject({
  eventId: z.string().min(1).max(128).optional(),
  type: z.string().min(1).max(128),
  data: z.unknown().optional(),
});
const rollbackBody = z.strictObject({ checkpoint: z.string().min(1).max(128) });
const rewardBody = z.strictObject({ value: z.number(), reason: z.string().optional() });

/** What an administrator may ask of a run's policy. */
export interface PolicyControl {
  list(): Promise<{ readonly version: number } & PolicyHistory>;
  /** Gives the version that the checkpoint is published as. */
  rollBack(checkpoint: string): Promise<number>;
}

/** JSON over HTTP for people, evaluators and the command line. Errors: `{error: {reason, message, hint?}}`. */
export function createHttpApi(options: HttpApiOptions): Hono {
  const { service, calls, verifier } = options;
  const api = new Hono();
  api.get("/healthz", (c) => c.json({ status: "ok" }));
  api.onError((error, c) => {
    const known = error instanceof OutriggerError ? error : undefined;
    const body = {
      reason: known?.reason ?? "internal",
      message: known?.message ?? "unexpected failure in the controller",
      ...(known?.hint !== undefined && { hint: known.hint }),
    };
    return c.json({ error: body }, statusOf(known?.reason));
  });
  api.notFound((c) =>
    c.json({ error: { reason: "route-unknown", message: "no such route" } }, 404),
  );

  // A reward comes from a token that only the verifier has; an event from one that the harness may.
  // An administrator's token lies on disk, where a harness may find it: it rewards nothing here.
  const attemptPath = "/v1/rollouts/:rolloutId/attempts/:attemptId" as const;
  const addEvent = async (
    target: { readonly rolloutId: string; readonly attemptId: string },
    event: {
      readonly eventId?: string | undefined;
      readonly type: string;
      readonly data?: unknown;
    },
  ): Promise<void> =>
    service.addEvent({
      ...target,
      eventId: event.eventId ?? options.randomId(),
      eventType: event.type,
      dataJson: JSON.stringify(event.data ?? {}),
      atMs: options.now(),
    });
  api.post(`${attemptPath}/reward`, async (c) => {
    const target = c.req.param();
    const { scopes } = await authorize(c, verifier, ["reward"], target);
    if (scopes.includes("admin")) await service.refuseOwn(target.rolloutId, target.attemptId);
    await addEvent(target, { type: "reward", data: await bodyOf(c.req, rewardBody) });
    return c.json({ status: "ok" }, 201);
  });
  api.post(`${attemptPath}/events`, async (c) => {
    const target = c.req.param();
    const event = await bodyOf(c.req, eventBody);
    const { scopes } = await authorize(
      c,
      verifier,
      event.type === "reward" ? ["reward"] : ["event", "reward"],
      target,
    );
    if (scopes.includes("admin")) await service.refuseOwn(target.rolloutId, target.attemptId);
    await addEvent(target, event);
    return c.json({ status: "ok" }, 201);
  });

  api.use("/v1/*", async (c, next) => {
    await authorize(c, verifier, []);
    await next();
  });
  api.get("/v1/run", async (c) => c.json({ ...(await options.status()) }));
  const policy = (): PolicyControl => {
    if (options.policy !== undefined) return options.policy;
    throw new OutriggerError("policy-unknown", "this controller trains no policy", {
      origin: "user",
    });
  };
  api.get("/v1/policy", async (c) => c.json(await policy().list()));
  api.post("/v1/policy/rollback", async (c) => {
    const { checkpoint } = await bodyOf(c.req, rollbackBody);
    return c.json({ checkpoint, version: await policy().rollBack(checkpoint) });
  });
  api.get("/v1/sidecars", (c) => c.json({ sidecars: options.sidecars() }));
  api.get("/v1/rollouts", async (c) => {
    const raw = Object.fromEntries(
      Object.entries(c.req.queries()).map(([k, v]) => [k, v.length === 1 ? v[0] : v]),
    );
    const query = parse(listQuery, raw);
    const { state } = query;
    const rollouts = await service.list({
      ...(state !== undefined && { states: Array.isArray(state) ? state : [state] }),
      ...(query.purpose !== undefined && { purpose: query.purpose }),
      ...(query.group !== undefined && { groupId: query.group }),
      ...(query.after !== undefined && { afterSeq: query.after }),
      limit: query.limit,
    });
    return c.json({ rollouts });
  });
  api.post("/v1/rollouts", async (c) => {
    const wanted = (await bodyOf(c.req, newRollouts)).map(({ groupId, metadata, ...rest }) => ({
      ...rest,
      rolloutId: rest.rolloutId ?? options.randomId(),
      ...(groupId !== undefined && { groupId }),
      ...(metadata !== undefined && { metadata }),
    }));
    return c.json({ rollouts: await service.create(wanted) }, 201);
  });
  api.get("/v1/rollouts/:rolloutId", async (c) =>
    c.json(await service.show(c.req.param("rolloutId"))),
  );
  api.post("/v1/rollouts/:rolloutId/cancel", async (c) =>
    c.json({ rollout: await service.cancel(c.req.param("rolloutId")) }),
  );
  api.delete("/v1/rollouts/:rolloutId", async (c) => {
    await service.remove(c.req.param("rolloutId"));
    return c.body(null, 204);
  });
  api.post("/v1/rollouts/:rolloutId/attempts", async (c) => {
    const rolloutId = c.req.param("rolloutId");
    const { owner, leaseMs } = await bodyOf(c.req, leaseBody);
    await service.refuseOwn(rolloutId);
    const attemptId = await service.startAttempt(rolloutId, owner, leaseMs);
    const mode = (await service.get(rolloutId))?.mode ?? "train";
    const token = await options.signCallToken(rolloutId, attemptId, mode);
    const urls = options.sidecars().map((sidecar) => sidecar.harnessUrl);
    return c.json({ attemptId, token, sidecarUrls: urls }, 201);
  });
  api.post(`${attemptPath}/end`, async (c) => {
    const { rolloutId, attemptId } = c.req.param();
    const { reason, reward, message } = await bodyOf(c.req, endBody);
    await service.refuseOwn(rolloutId, attemptId);
    const rollout = await service.endAttempt(rolloutId, attemptId, {
      reason,
      ...(reward !== undefined && { reward }),
      ...(message !== undefined && { message }),
    });
    return c.json({ rollout });
  });
  api.get(`${attemptPath}/events`, async (c) => {
    const { rolloutId, attemptId } = c.req.param();
    return c.json({ events: await service.events(rolloutId, attemptId) });
  });
  api.get(`${attemptPath}/calls`, async (c) => {
    const { rolloutId, attemptId } = c.req.param();
    const found = await calls.callsOfAttempt(rolloutId, attemptId);
    return c.json({ calls: found.map(toCallJson) });
  });
  api.get("/v1/requests/:requestId/text", async (c) => {
    const text = await calls.textOfRequest(c.req.param("requestId"));
    if (text === undefined) throw unknown("request", c.req.param("requestId"));
    return c.json(text);
  });
  return api;
}

function statusOf(reason: string | undefined): ContentfulStatusCode {
  if (reason === undefined) return 500;
  if (reason === "token-forbidden") return 403;
  if (reason.startsWith("token-")) return 401;
  if (reason.endsWith("-unknown")) return 404;
  if (["rollout-not-queued", "policy-busy", "attempt-ours"].includes(reason)) return 409;
  return reason === "request-invalid" ? 422 : 500;
}

function unknown(what: string, id: string): OutriggerError {
  return new OutriggerError(`${what}-unknown`, `there is no ${what} ${id}`, { origin: "user" });
}

async function bodyOf<S extends z.ZodType>(
  request: { json(): Promise<unknown> },
  schema: S,
): Promise<z.output<S>> {
  let body: unknown;
  try {
    body = await request.json();
  } catch (error) {
    throw invalid(`the body is not JSON: ${(error as Error).message}`);
  }
  return parse(schema, body);
}

function parse<S extends z.ZodType>(schema: S, value: unknown): z.output<S> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw invalid(z.prettifyError(parsed.error));
}

function invalid(message: string): OutriggerError {
  return new OutriggerError("request-invalid", message, { origin: "user" });
}
