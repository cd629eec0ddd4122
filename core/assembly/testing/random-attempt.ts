import type { CapturedCall } from "../captured-call.ts";
import { type Random, seededRandom } from "./random.ts";

/** What really happened: one sampling of the simulated engine. */
export interface TrueSampling {
  /** Any of its records may stand for it. */
  readonly callIds: readonly string[];
  readonly prompt: readonly number[];
  readonly response: readonly number[];
  readonly logprobs: readonly number[];
  readonly versions: readonly number[];
  /** The harness received it, kept it, and the record is whole. */
  readonly isToBeTrained: boolean;
}

export interface RandomAttempt {
  readonly records: readonly CapturedCall[];
  readonly truth: readonly TrueSampling[];
}

/** How often each thing happens at a turn; 0 turns it off. */
export interface AttemptHabits {
  readonly turns: number;
  /** Conversations that take turns in random order. */
  readonly threads: number;
  readonly vocabulary: number;
  readonly promptTokens: number;
  readonly responseTokens: number;
  readonly branch: number;
  readonly compaction: number;
  readonly strippedThinking: number;
  readonly retry: number;
  readonly replay: number;
  readonly supersede: number;
  readonly parallel: number;
  readonly choices: number;
  readonly incomplete: number;
  readonly sideCall: number;
  readonly unproven: number;
  readonly duplicate: number;
}

export const plainHabits: AttemptHabits = {
  turns: 12,
  threads: 1,
  // So many that two samplings never agree by chance: what one prompt proves is then unambiguous.
  vocabulary: 2 ** 30,
  promptTokens: 6,
  responseTokens: 5,
  branch: 0,
  compaction: 0,
  strippedThinking: 0,
  retry: 0,
  replay: 0,
  supersede: 0,
  parallel: 0,
  choices: 0,
  incomplete: 0,
  sideCall: 0,
  unproven: 0,
  duplicate: 0,
};

export const wildHabits: AttemptHabits = {
  ...plainHabits,
  turns: 14,
  threads: 4,
  branch: 0.1,
  compaction: 0.07,
  strippedThinking: 0.1,
  retry: 0.1,
  replay: 0.08,
  supersede: 0.08,
  parallel: 0.1,
  choices: 0.1,
  incomplete: 0.12,
  sideCall: 0.05,
  unproven: 0.08,
  duplicate: 0.1,
};

type Context = readonly number[];

interface SamplingFlags {
  readonly delivered?: boolean;
  readonly isKept?: boolean;
  readonly retryOf?: string;
  readonly sideCall?: boolean;
  /** The record comes through whole. */
  readonly isSafe?: boolean;
}

/**
 * Plays a harness with the given habits against a pretend engine and keeps both what was recorded
 * and what really happened. It knows nothing of how assembly works.
 */
export function randomAttempt(seed: number, habits: AttemptHabits): RandomAttempt {
  const play = new Play(seededRandom(seed), habits);
  for (let turn = 0; turn < habits.turns; turn++) play.turn();
  return { records: play.records, truth: play.truth };
}

class Play {
  readonly records: CapturedCall[] = [];
  readonly truth: TrueSampling[] = [];
  readonly #random: Random;
  readonly #habits: AttemptHabits;
  readonly #system: Context;
  readonly #threads: Context[];
  /** Contexts that a branch may go back to. */
  readonly #past: Context[] = [];
  #clock = 1000;
  #requests = 0;

  constructor(random: Random, habits: AttemptHabits) {
    this.#random = random;
    this.#habits = habits;
    this.#system = this.#tokens(habits.promptTokens);
    this.#threads = Array.from({ length: habits.threads }, () => [
      ...this.#system,
      ...this.#tokens(3),
    ]);
  }

  turn(): void {
    const { branch, parallel, choices, sideCall } = this.#habits;
    const thread = this.#random.below(this.#threads.length);
    if (this.#past.length > 0 && this.#random.chance(branch)) {
      this.#threads[thread] = this.#past[this.#random.below(this.#past.length)] as Context;
    }
    const prompt = [...(this.#threads[thread] as Context), ...this.#observation()];
    if (this.#random.chance(sideCall)) this.#sample(prompt, { sideCall: true, isKept: false });
    if (this.#random.chance(parallel)) {
      const siblings = 1 + this.#random.below(3);
      for (let i = 0; i < siblings; i++) this.#sample(prompt, {});
    }
    const response = this.#random.chance(choices)
      ? this.#sampleChoices(prompt)
      : this.#sampleOne(prompt);
    this.#past.push([...prompt, ...response]);
    this.#threads[thread] = this.#history(prompt, response);
  }

  /** What the harness sends back next time for this turn. */
  #history(prompt: Context, response: Context): Context {
    const { strippedThinking, compaction } = this.#habits;
    if (this.#random.chance(compaction)) {
      return [...this.#system, ...this.#tokens(4), ...response.slice(0, -1)];
    }
    if (response.length > 2 && this.#random.chance(strippedThinking)) {
      return [...prompt, ...response.slice(1 + this.#random.below(response.length - 2))];
    }
    return [...prompt, ...response];
  }

  #sampleOne(prompt: Context): Context {
    const { retry, replay, supersede, unproven } = this.#habits;
    if (this.#random.chance(retry)) {
      const isMarked = this.#random.chance(0.5);
      const lost = this.#sample(prompt, { delivered: false, isKept: false });
      return this.#sample(prompt, isMarked ? { retryOf: lost.requestId } : {}).response;
    }
    if (this.#random.chance(replay)) return this.#sampleReplayed(prompt);
    if (this.#random.chance(supersede)) {
      const refused = this.#sample(prompt, { isKept: false });
      return this.#sample(prompt, { retryOf: refused.requestId }).response;
    }
    if (this.#random.chance(unproven)) return this.#sampleUnacknowledged(prompt);
    return this.#sample(prompt, {}).response;
  }

  /** Recorded as never delivered, but the harness goes on from it at once: that is the proof. */
  #sampleUnacknowledged(prompt: Context): Context {
    const { response } = this.#sample(prompt, { delivered: false });
    const observation = this.#observation();
    const next = this.#sample([...prompt, ...response, ...observation], { isSafe: true });
    return [...response, ...observation, ...next.response];
  }

  /** One sampling, recorded when it was sampled and again when it was shown to the retry. */
  #sampleReplayed(prompt: Context): Context {
    const first = this.#sample(prompt, { delivered: this.#random.chance(0.5) });
    const original = this.records.at(-1) as CapturedCall;
    const again = `${original.callId}-again`;
    this.records.push({
      ...original,
      callId: again,
      requestId: `${original.requestId}-again`,
      retryOf: original.requestId,
      startedAt: this.#tick(),
      finishedAt: this.#tick(),
      delivered: true,
    });
    const truth = this.truth.pop() as TrueSampling;
    this.truth.push({ ...truth, callIds: [original.callId, again] });
    return first.response;
  }

  #sampleChoices(prompt: Context): Context {
    const count = 2 + this.#random.below(3);
    const requestId = `q${this.#requests++}`;
    const responses = Array.from({ length: count }, () => this.#response());
    const completionTokens = responses.reduce((sum, one) => sum + one.length, 0);
    responses.forEach((response, choice) => {
      this.#record(prompt, response, requestId, choice, completionTokens, {});
    });
    return responses[this.#random.below(count)] as Context;
  }

  #sample(prompt: Context, flags: SamplingFlags): { requestId: string; response: Context } {
    const requestId = `q${this.#requests++}`;
    const response = this.#response();
    this.#record(prompt, response, requestId, 0, response.length, flags);
    return { requestId, response };
  }

  #record(
    prompt: Context,
    response: Context,
    requestId: string,
    choiceIndex: number,
    completionTokens: number,
    flags: SamplingFlags,
  ): void {
    const { delivered = true, isKept = true, isSafe = false, retryOf, sideCall } = flags;
    const version = Math.floor(this.records.length / 4);
    const cut = this.#random.below(response.length + 1);
    const logprobs = response.map(() => Math.fround(-this.#random.next() * 5));
    const call: CapturedCall = {
      callId: `c${this.records.length}`,
      rolloutId: "r",
      attemptId: "a",
      requestId,
      choiceIndex,
      promptIds: Int32Array.from(prompt),
      responseIds: Int32Array.from(response),
      logprobs: Float32Array.from(logprobs),
      policyVersion: version,
      policyVersions: [
        { version, start: 0, end: cut },
        { version: version + 1, start: cut, end: response.length },
      ],
      startedAt: this.#tick(),
      finishedAt: this.#tick(),
      delivered,
      complete: true,
      finishReason: this.#random.chance(0.2) ? "length" : "stop",
      usage: { promptTokens: prompt.length, completionTokens },
      ...(retryOf === undefined ? {} : { retryOf }),
      ...(sideCall === undefined ? {} : { sideCall }),
    };
    const isAlone = completionTokens === response.length;
    const isSpoilt = !isSafe && isAlone && this.#random.chance(this.#habits.incomplete);
    const record = isSpoilt ? this.#spoil(call) : call;
    this.records.push(record);
    if (this.#random.chance(this.#habits.duplicate)) this.records.push({ ...record });
    this.truth.push({
      callIds: [call.callId],
      prompt,
      response,
      logprobs,
      versions: response.map((_, i) => (i < cut ? version : version + 1)),
      isToBeTrained: isKept && !isSpoilt,
    });
  }

  /** One of the ways in which capture fails. */
  #spoil(call: CapturedCall): CapturedCall {
    const { logprobs, responseIds } = call as { logprobs: Float32Array; responseIds: Int32Array };
    const place = this.#random.below(logprobs.length);
    switch (this.#random.below(6)) {
      case 0:
        return { ...call, logprobs: logprobs.with(place, Number.NaN) };
      case 1:
        return { ...call, logprobs: logprobs.with(place, -9999) };
      case 2:
        return { ...call, logprobs: null, complete: false, incompleteReason: "logprobs-missing" };
      case 3:
        return { ...call, responseIds: responseIds.slice(1), logprobs: logprobs.slice(1) };
      case 4:
        return { ...call, promptIds: null, responseIds: null, logprobs: null, complete: false };
      default:
        return { ...call, logprobs: logprobs.slice(1) };
    }
  }

  #observation(): Context {
    return this.#tokens(1 + this.#random.below(this.#habits.promptTokens));
  }

  #response(): Context {
    return this.#tokens(1 + this.#random.below(this.#habits.responseTokens));
  }

  #tokens(count: number): number[] {
    return Array.from({ length: count }, () => this.#random.below(this.#habits.vocabulary));
  }

  /** Coarse on purpose: many calls begin in the same millisecond. */
  #tick(): number {
    this.#clock += this.#random.below(2);
    return this.#clock;
  }
}
