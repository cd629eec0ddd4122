import { createCallCapture } from "../dialects/call-capture.ts";
import { chatDialect } from "../dialects/chat/chat-dialect.ts";
import type { EngineProfile } from "../dialects/dialect.ts";
import { asArray, asRecord, asText, parseJson } from "../dialects/json-value.ts";
import { createSseDecoder } from "../sse/sse-decoder.ts";
import { askEngine, type EngineAnswer } from "./ask-engine.ts";
import type { CanaryResult, Engine } from "./engine.ts";
import { statusProblem } from "./status-problem.ts";

export interface CanaryOptions {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
  readonly newId: (prefix: string) => string;
}

interface Probe {
  readonly answer: EngineAnswer;
  /** Undefined when ids, logprobs and counts are right. */
  readonly problem: string | undefined;
}

/**
 * Asks an engine for a few tokens, through the same planning, connection and capture as a
 * harness's call, once whole and once streamed. Routers and some engine versions drop ids
 * silently; a run that trained on such calls would train on nothing, or on the wrong thing.
 */
export async function runCanary(engine: Engine, options: CanaryOptions): Promise<CanaryResult> {
  const { canary: known, model: named, profile } = engine;
  if (known?.isConclusive === true && known.problem === undefined) {
    // Asked again: once, in the way in which it is used, suffices while the answer is the same.
    const again = await probe(
      engine,
      known.model ?? named,
      known.streamsIds,
      profile.kind,
      options,
    );
    if (again.problem === undefined) return known;
  }
  const models = await askEngine(
    engine,
    { method: "GET", path: `${engine.basePath}/v1/models`, body: null },
    options,
  );
  if (models.kind === "unreachable") return unreachable(models.message);
  const listed = readModels(models);
  const model = engine.model ?? listed.model;
  const kind = listed.kind ?? engine.profile.kind;
  const whole = await probe(engine, model, false, kind, options);
  if (whole.answer.kind === "unreachable") return unreachable(whole.answer.message);
  if (isNotReady(whole.answer.status)) {
    return { ...unreachable(`the engine answered ${whole.answer.status}`), isUnreachable: false };
  }
  const streamed = await probe(engine, model, true, kind, options);
  const facts = { kind: listed.kind, model, isConclusive: true, isUnreachable: false };
  if (streamed.problem === undefined) return { ...facts, problem: undefined, streamsIds: true };
  // Ids without streaming suffice: streams are then synthesised. When neither has them, calls are
  // relayed as they are, so that a harness loses nothing.
  return { ...facts, problem: whole.problem, streamsIds: whole.problem !== undefined };
}

async function probe(
  engine: Engine,
  model: string | undefined,
  stream: boolean,
  kind: EngineProfile["kind"],
  options: CanaryOptions,
): Promise<Probe> {
  const request = {
    ...(model === undefined ? {} : { model }),
    messages: [{ role: "user", content: "Say hello." }],
    max_tokens: 4,
    ...(stream ? { stream } : {}),
  };
  const plan = chatDialect.planCall(Buffer.from(JSON.stringify(request)), {
    engine: { kind, streamsIds: true },
    capture: true,
    requestId: options.newId("canary_"),
    newId: options.newId,
    nowMs: () => Date.now(),
  });
  if (plan.kind === "refused") throw new Error("the canary request is not a valid chat request");
  const path = `${engine.basePath}${plan.upstreamPath}`;
  const answer = await askEngine(
    engine,
    { method: "POST", path, body: plan.upstreamBody },
    options,
  );
  if (answer.kind === "unreachable") return { answer, problem: answer.message };
  if (answer.status !== 200) return { answer, problem: statusProblem(answer.status, answer.body) };
  return { answer, problem: captureProblem(answer.body, stream) };
}

function captureProblem(body: Buffer, stream: boolean): string | undefined {
  const capture = createCallCapture();
  if (stream) {
    const decoder = createSseDecoder();
    for (const block of decoder.push(body)) capture.addBlock(block);
  } else capture.addResponse(parseJson(body.toString("utf8")));
  const [choice] = capture.result().choices;
  return choice === undefined ? "no-choice" : choice.incompleteReason;
}

function readModels(answer: { readonly body: Buffer }): {
  readonly model: string | undefined;
  readonly kind: EngineProfile["kind"] | undefined;
} {
  const list = asArray(asRecord(parseJson(answer.body.toString("utf8")))?.["data"]) ?? [];
  const first = asRecord(list[0]);
  const owner = asText(first?.["owned_by"]);
  const kind =
    owner === "vllm" || owner === "sglang" ? owner : owner === "outrigger" ? "native" : undefined;
  return { model: asText(first?.["id"]), kind };
}

/** Loading, overloaded or held: says nothing about ids. */
function isNotReady(status: number): boolean {
  return status === 429 || status === 502 || status === 503 || status === 504 || status === 529;
}

function unreachable(problem: string): CanaryResult {
  return {
    problem,
    streamsIds: true,
    kind: undefined,
    model: undefined,
    isConclusive: false,
    isUnreachable: true,
  };
}
