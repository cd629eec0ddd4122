import { type Context, Hono } from "hono";
import type { ContentfulStatusCode } from "hono/utils/http-status";
import type { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { type AglGateway, openAglGateway } from "./agl-gateway.ts";
import type { AglAccess, AglPort, PortRollout } from "./agl-port.ts";
import {
  type AglNote,
  aglStateOf,
  aglStates,
  createBody,
  dataIdOf,
  decidePatch,
  eventBody,
  lastAttemptOf,
  modelsBody,
  newNote,
  noteOf,
  patchBody,
  pauseBody,
  type StatusPatch,
  statesOf,
  toAglRollout,
} from "./agl-wire.ts";
import { forwardCall } from "./forward-call.ts";
import { postedEvent, rawEvents, tripletEvents } from "./model-events.ts";

/** An answer other than success, with Agent Lightning's body `{detail}`. */
class Refusal extends Error {
  readonly status: ContentfulStatusCode;
  readonly detail: unknown;
  constructor(status: ContentfulStatusCode, detail: unknown) {
    super(typeof detail === "string" ? detail : "refused");
    this.status = status;
    this.detail = detail;
  }
}

/**
 * Agent Lightning v1's HTTP API, for an unmodified trainer and for agents. What differs on purpose:
 * agents carry a token of their own attempt, streaming works, n > 1 and parallel calls are kept, and
 * everything survives a restart.
 */
export async function createAglApi(port: AglPort): Promise<Hono> {
  const gateway = await openAglGateway(port);
  const app = new Hono();
  app.onError((error, c) => {
    if (error instanceof Refusal) return c.json({ detail: error.detail }, error.status);
    if (error instanceof OutriggerError && error.reason === "rollout-unknown") {
      return c.json({ detail: error.message }, 404);
    }
    const reason = error instanceof OutriggerError ? `: ${error.message}` : "";
    return c.json({ detail: `unexpected failure in the controller${reason}` }, 500);
  });
  rolloutRoutes(app, port);
  eventRoutes(app, port);
  modelRoutes(app, port, gateway);
  gatewayRoutes(app, port, gateway);
  return app;
}

function rolloutRoutes(app: Hono, port: AglPort): void {
  const { rollouts } = port;
  app.post("/api/rollouts", async (c) => {
    await admit(c, port, { scope: "admin" });
    const items = await bodyOf(c, createBody);
    const wanted = items.map((item) => {
      const note = newNote(item);
      const rolloutId = item.rollout_id ?? port.randomId();
      return {
        rolloutId,
        mode: item.is_train ? ("train" as const) : ("eval" as const),
        purpose: "agl",
        taskId: rolloutId,
        input: note.isWrapped ? { value: item.input } : (item.input as Record<string, unknown>),
        metadata: { agl: note },
      };
    });
    const created = wanted.length === 0 ? [] : await rollouts.create(wanted);
    return c.json(created.map(toAglRollout), 201);
  });
  app.get("/api/rollouts", async (c) => {
    await admit(c, port, { scope: "admin" });
    const names = c.req.queries("state_in") ?? [];
    const unknown = names.find((name) => !(aglStates as readonly string[]).includes(name));
    if (names.length === 0 || unknown !== undefined) {
      throw invalid("query", ["state_in"], `one or more of ${aglStates.join(", ")}`);
    }
    const limit = wholeNumber(c, "limit", 500);
    if (limit <= 0) return c.json([]);
    const found = await rollouts.list(statesOf(names as (typeof aglStates)[number][]), limit);
    return c.json(found.map(toAglRollout));
  });
  app.get("/api/rollouts/terminal", async (c) => {
    await admit(c, port, { scope: "admin" });
    const after = Math.max(0, wholeNumber(c, "after", 0));
    const limit = Math.max(1, wholeNumber(c, "limit", 1000));
    const total = await rollouts.terminalCount();
    const next = Math.max(after, Math.min(after + limit, total));
    const items = next > after ? await rollouts.terminal(after, next) : [];
    return c.json({
      items: items.map((rollout) => ({
        rollout_id: rollout.rolloutId,
        state: aglStateOf(rollout.state),
        data_id: dataIdOf(rollout),
        is_train: rollout.mode === "train",
      })),
      next_after: next,
      total_terminal: total,
    });
  });
  app.get("/api/rollouts/:rolloutId", async (c) => {
    await admit(c, port, { scope: "admin" });
    const rollout = await known(port, c.req.param("rolloutId"));
    const attempts = await port.records.attempts(rollout.rolloutId);
    return c.json({ rollout: toAglRollout(rollout), attempts });
  });
  app.patch("/api/rollouts/:rolloutId", async (c) => {
    await admit(c, port, { scope: "admin" });
    const { status } = await bodyOf(c, patchBody);
    const rollout = await known(port, c.req.param("rolloutId"));
    await applyPatch(port, rollout, status ?? {});
    return c.json(toAglRollout(await known(port, rollout.rolloutId)));
  });
  app.delete("/api/rollouts/:rolloutId", async (c) => {
    await admit(c, port, { scope: "admin" });
    await rollouts.remove(c.req.param("rolloutId"));
    return c.body(null, 204);
  });
}

async function applyPatch(port: AglPort, rollout: PortRollout, patch: StatusPatch): Promise<void> {
  const { rollouts } = port;
  const { rolloutId } = rollout;
  const decision = decidePatch(rollout.state, patch);
  if (decision.kind === "nothing") return;
  if (decision.kind === "forbidden") {
    const { from, to } = decision;
    throw new Refusal(409, `Rollout ${rolloutId}: cannot transition ${from} -> ${to}`);
  }
  const note: AglNote = {
    ...noteOf(rollout),
    ...(patch.k8s_job_name !== undefined && { k8sJobName: patch.k8s_job_name }),
    ...(patch.last_attempt_id !== undefined && { lastAttemptId: patch.last_attempt_id }),
    ...(patch.error_message !== undefined && { errorMessage: patch.error_message }),
  };
  const isChange = decision.kind === "annotate";
  await rollouts.annotate(rolloutId, { ...rollout.metadata, agl: note }, isChange);
  const message = patch.error_message ?? undefined;
  if (decision.kind === "start") await rollouts.startAttempt(rolloutId);
  else if (decision.kind === "end") {
    await rollouts.endAttempt(rolloutId, decision.isSuccess, message);
  } else if (decision.kind === "cancel") await rollouts.cancel(rolloutId);
}

function eventRoutes(app: Hono, port: AglPort): void {
  const { records } = port;
  app.post("/api/rollouts/:rolloutId/attempt/:attemptId/events", async (c) => {
    const { rolloutId, attemptId } = c.req.param();
    // The token is asked for before the body is looked at; a reward then needs its own scope.
    await admit(c, port, { scope: "event", rolloutId, attemptId });
    const { event_type: eventType, data } = await bodyOf(c, eventBody);
    if (eventType === "reward") await admit(c, port, { scope: "reward", rolloutId, attemptId });
    await known(port, rolloutId);
    const event = {
      eventId: port.randomId(),
      rolloutId,
      attemptId,
      eventType,
      dataJson: JSON.stringify(data),
      atMs: port.now(),
    };
    await records.addEvent(event);
    return c.json(postedEvent(event));
  });
  app.get("/api/rollouts/:rolloutId/events", async (c) => {
    await admit(c, port, { scope: "admin" });
    const rollout = await known(port, c.req.param("rolloutId"));
    const { rolloutId } = rollout;
    const attemptId = lastAttemptOf(rollout) ?? "0";
    const isTriplet = c.req.query("format") === "triplet";
    const requests = await records.requests(rolloutId, attemptId, !isTriplet);
    const posted = await records.events(rolloutId, attemptId);
    const target = { rolloutId, attemptId };
    const all = isTriplet
      ? tripletEvents(target, requests, posted, { includeSideCalls: port.includesSideCalls })
      : rawEvents(target, requests, posted);
    const type = c.req.query("event_type");
    return c.json(type === undefined ? all : all.filter((event) => event.event_type === type));
  });
}

function modelRoutes(app: Hono, port: AglPort, gateway: AglGateway): void {
  app.post("/api/models", async (c) => {
    await admit(c, port, { scope: "admin" });
    const wanted = (await bodyOf(c, modelsBody)).map(({ model, endpoint, version }) => ({
      model,
      endpoint,
      version,
    }));
    await gateway.registerModels(wanted);
    return c.json(wanted, 201);
  });
  app.delete("/api/models", async (c) => {
    await admit(c, port, { scope: "admin" });
    await gateway.deleteModels();
    return c.json({ status: "ok" });
  });
}

function gatewayRoutes(app: Hono, port: AglPort, gateway: AglGateway): void {
  app.post("/proxy/pause", async (c) => {
    await admit(c, port, { scope: "admin" });
    const { retry_after_seconds: seconds, reason } = await bodyOf(c, pauseBody);
    return c.json(await gateway.pause(seconds, reason ?? null));
  });
  app.post("/proxy/resume", async (c) => {
    await admit(c, port, { scope: "admin" });
    return c.json(await gateway.resume());
  });
  app.get("/proxy/state", async (c) => {
    await admit(c, port, { scope: "admin" });
    return c.json(gateway.state());
  });
  app.post("/proxy/rollout/:rolloutId/attempt/:attemptId/mode/:mode/openai/v1/*", async (c) => {
    const { rolloutId, attemptId, mode } = c.req.param();
    await admit(c, port, { scope: "call", rolloutId, attemptId });
    const url = new URL(c.req.url);
    const rest = url.pathname.slice(url.pathname.indexOf("/openai/v1/") + "/openai/v1/".length);
    if (mode !== "train" && mode !== "val") {
      throw new Refusal(404, `Unsupported proxy mode: ${mode}`);
    }
    if (rest !== "chat/completions" && rest !== "completions") {
      throw new Refusal(404, `Unsupported upstream path: ${rest}`);
    }
    await known(port, rolloutId);
    if (gateway.models().length === 0) throw new Refusal(503, "No model server is registered");
    const sidecarUrls = port.sidecarUrls();
    if (sidecarUrls.length === 0) throw new Refusal(503, "No sidecar is connected");
    const body = new Uint8Array(await c.req.arrayBuffer());
    const token = await port.signCallToken(
      rolloutId,
      attemptId,
      mode === "train" ? "train" : "eval",
    );
    const { signal } = c.req.raw;
    const path = `${url.pathname}${url.search}`;
    const call = { sidecarUrls, rolloutId, path, headers: c.req.raw.headers, body, token, signal };
    let answer: Response;
    try {
      answer = await forwardCall(call);
    } catch (error) {
      throw new Refusal(503, `the sidecar cannot be reached: ${(error as Error).message}`);
    }
    const state = gateway.state();
    if (answer.status === 429 && state.paused) {
      answer.headers.set("retry-after", String(state.retry_after_seconds));
      answer.headers.set("x-agl-paused", "true");
    }
    return answer;
  });
}

async function admit(c: Context, port: AglPort, access: AglAccess): Promise<void> {
  const bearer = /^Bearer\s+(\S+)$/i.exec(c.req.header("authorization") ?? "")?.[1];
  const verdict = await port.authorize(bearer ?? c.req.header("x-api-key"), access);
  if (verdict === "unauthenticated") throw new Refusal(401, "Invalid or missing API key");
  if (verdict === "forbidden") throw new Refusal(403, "The key does not allow this");
}

async function known(port: AglPort, rolloutId: string): Promise<PortRollout> {
  const rollout = await port.rollouts.get(rolloutId);
  if (rollout === undefined) throw new Refusal(404, `Rollout not found: ${rolloutId}`);
  return rollout;
}

function wholeNumber(c: Context, name: string, byDefault: number): number {
  const text = c.req.query(name);
  if (text === undefined) return byDefault;
  if (!/^-?\d{1,15}$/.test(text)) throw invalid("query", [name], "must be a whole number");
  return Number(text);
}

async function bodyOf<S extends z.ZodType>(c: Context, schema: S): Promise<z.output<S>> {
  let value: unknown;
  try {
    value = await c.req.json();
  } catch (error) {
    throw invalid("body", [], `the body is not JSON: ${(error as Error).message}`);
  }
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw new Refusal(
    422,
    parsed.error.issues.map(({ path, message, code }) => ({
      loc: ["body", ...path.map((part) => (typeof part === "symbol" ? String(part) : part))],
      msg: message,
      type: code,
    })),
  );
}

function invalid(where: string, path: readonly string[], msg: string): Refusal {
  return new Refusal(422, [{ loc: [where, ...path], msg, type: "invalid" }]);
}
