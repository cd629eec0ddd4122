import { type CallFitness, judgeCall } from "./call-fitness.ts";
import type { CapturedCall } from "./captured-call.ts";
import { createTrie, extendTrie, type TrieNode } from "./context-trie.ts";

/** A call and its place among the contexts of its attempt. */
export interface TracedCall {
  readonly call: CapturedCall;
  readonly fitness: CallFitness;
  /** Where its prompt ends; null without prompt ids. */
  readonly promptNode: TrieNode | null;
  /** Where prompt and response end; null where the call cannot be context. */
  readonly contextNode: TrieNode | null;
  /** The last point that its prompt shares with an earlier call's ids; null without prompt ids. */
  readonly departure: TrieNode | null;
  /** The latest earlier call through `departure`, as an index; -1 for none. */
  readonly neighbour: number;
}

/** Puts the calls of one attempt, in canonical order, into one trie. */
export function traceCalls(calls: readonly CapturedCall[]): TracedCall[] {
  const root = createTrie();
  const choiceTokens = countChoiceTokens(calls);
  return calls.map((call, index) =>
    traceCall(root, call, index, choiceTokens.get(call.requestId) as number),
  );
}

/** Response ids of all choices of each request; of records that show one choice, the fullest. */
function countChoiceTokens(calls: readonly CapturedCall[]): ReadonlyMap<string, number> {
  const sums = new Map<string, number>();
  const fullest = new Map<string, Map<number, number>>();
  for (const { requestId, choiceIndex, responseIds } of calls) {
    const choices = fullest.get(requestId) ?? new Map<number, number>();
    fullest.set(requestId, choices);
    const known = choices.get(choiceIndex) ?? 0;
    const tokens = Math.max(known, responseIds?.length ?? 0);
    choices.set(choiceIndex, tokens);
    sums.set(requestId, (sums.get(requestId) ?? 0) + tokens - known);
  }
  return sums;
}

function traceCall(
  root: TrieNode,
  call: CapturedCall,
  index: number,
  choiceTokens: number,
): TracedCall {
  const fitness = judgeCall(call, choiceTokens);
  const { promptIds, responseIds } = call;
  if (promptIds === null || promptIds.length === 0) {
    return { call, fitness, promptNode: null, contextNode: null, departure: null, neighbour: -1 };
  }
  const prompt = extendTrie(root, promptIds, index);
  const { departure, neighbour } = prompt;
  const isContext = fitness.kind === "trainable" || fitness.kind === "masked";
  let contextNode: TrieNode | null = null;
  if (isContext && responseIds !== null && responseIds.length > 0) {
    contextNode = extendTrie(prompt.node, responseIds, index).node;
    contextNode.contexts ??= [];
    contextNode.contexts.push(index);
  }
  return { call, fitness, promptNode: prompt.node, contextNode, departure, neighbour };
}

/** The nearest context that the ids up to `from` extend and that `accepts` takes, as its node. */
export function nearestContext(
  from: TrieNode | null,
  accepts: (callIndex: number) => boolean,
): { readonly node: TrieNode; readonly callIndex: number } | null {
  for (let node = from; node !== null; node = node.parent) {
    const callIndex = node.contexts?.find(accepts);
    if (callIndex !== undefined) return { node, callIndex };
  }
  return null;
}
