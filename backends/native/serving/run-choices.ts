import { linkedAbort } from "../../../runtime/linked-abort.ts";
import type { PolicyModel } from "../model/load-model.ts";
import { type Choice, type ChoiceDelta, type ChoiceEnd, createChoice } from "./choice.ts";
import { badRequest, contextOverflow } from "./error-response.ts";
import type { GenerationFields } from "./generation-fields.ts";
import type { ServingEngine } from "./policy-engine.ts";

/** One prompt, checked against the model: what to sample and how often. */
export interface ChoicesPlan {
  readonly promptIds: Int32Array;
  readonly fields: GenerationFields;
  readonly maxTokens: number;
  readonly topLogprobs: number;
  readonly parsesToolCalls: boolean;
}

export interface EndedChoice {
  readonly choice: Choice;
  readonly end: ChoiceEnd;
}

export interface FinishedChoices {
  readonly choices: readonly EndedChoice[];
  /** Prompt tokens that were not computed again, of the first choice. */
  readonly cachedTokenCount: number;
}

/** Refuses, with the words that clients know, what does not fit in the context or the vocabulary. */
export function planChoices(
  engine: Pick<ServingEngine, "maxLength">,
  model: Pick<PolicyModel, "config">,
  promptIds: Int32Array,
  fields: GenerationFields,
  more: { readonly topLogprobs: number; readonly parsesToolCalls: boolean },
): ChoicesPlan {
  if (promptIds.length === 0) throw badRequest("the prompt is empty");
  const wrong = promptIds.find((id) => id < 0 || id >= model.config.vocabSize);
  if (wrong !== undefined) {
    throw badRequest(`token id ${wrong} is out of the vocabulary of ${model.config.vocabSize}`);
  }
  const room = engine.maxLength - promptIds.length;
  if (room < 1 || (fields.maxTokens ?? 1) > room) {
    throw contextOverflow(engine.maxLength, promptIds.length, fields.maxTokens);
  }
  return { promptIds, fields, maxTokens: fields.maxTokens ?? room, ...more };
}

/**
 * Samples every choice of a plan at once. `onDelta` sees tokens and text as they come; the last
 * one of a choice comes with its end. The first failure or an abort ends all choices.
 */
export async function runChoices(
  engine: ServingEngine,
  model: Pick<PolicyModel, "tokenizer" | "endIds">,
  plan: ChoicesPlan,
  signal: AbortSignal,
  onDelta: (index: number, delta: ChoiceDelta, ended: EndedChoice | undefined) => void,
): Promise<FinishedChoices> {
  const abort = linkedAbort(signal);
  let cachedTokenCount = 0;
  const runOne = async (index: number) => {
    const { fields } = plan;
    const choice = createChoice({
      tokenizer: model.tokenizer,
      endIds: fields.ignoresEnd ? new Set() : model.endIds,
      stopIds: new Set(fields.stopIds),
      stopStrings: fields.stopStrings,
      parsesToolCalls: plan.parsesToolCalls,
    });
    await engine.generate(
      {
        promptIds: plan.promptIds,
        sampling: { ...fields.sampling, topLogprobs: plan.topLogprobs },
        maxTokens: plan.maxTokens,
        seed: fields.seed,
        choiceIndex: index,
        endIds: fields.ignoresEnd ? fields.stopIds : [...model.endIds, ...fields.stopIds],
        onToken: (token) => {
          const { delta, isEnded } = choice.accept(token);
          onDelta(index, delta, undefined);
          return isEnded;
        },
        onStart: (cached) => {
          if (index === 0) cachedTokenCount = cached;
        },
      },
      abort.signal,
    );
    const { delta, end } = choice.finish();
    onDelta(index, delta, { choice, end });
    return { choice, end };
  };
  try {
    const running = Array.from({ length: plan.fields.choiceCount }, (_, index) => runOne(index));
    const choices = await Promise.all(running);
    return { choices, cachedTokenCount };
  } catch (error) {
    abort.abort(error);
    throw error;
  } finally {
    abort.release();
  }
}
