import { canAbsorbDrift, type DriftFacts } from "./absorb-drift.ts";
import type { CapturedCall } from "./captured-call.ts";
import type { DecodeIds } from "./classify-break.ts";
import type { TrieNode } from "./context-trie.ts";
import { nearestContext, type TracedCall } from "./trace-calls.ts";

/** A call to be trained and the call that it goes on from. */
export interface Turn {
  readonly call: CapturedCall;
  readonly parent: Turn | null;
  /** Position of the response's first token. */
  readonly start: number;
  /** One past the response's last token. */
  readonly end: number;
  /** One past the last token to train; below `end` where drift was absorbed or a limit cuts. */
  trainedEnd: number;
  /** Where the ids begin that are new since the parent's response; 0 without a parent. */
  readonly observationStart: number;
}

export interface DriftOptions {
  readonly decode: DecodeIds | undefined;
  readonly maxDriftTokens: number;
}

/** Contexts looked at around one point before drift is given up as too ambiguous. */
const MAX_DRIFT_CANDIDATES = 64;

/**
 * Links each trainable call to its parent: the one with the longest context that its prompt
 * extends exactly, or, only where that saves a row, the one whose last response merely drifted.
 * `trainable` are indexes into `traced` in order of time; the turns come back in that order.
 */
export function linkTurns(
  traced: readonly TracedCall[],
  trainable: readonly number[],
  drift: DriftOptions,
): Turn[] {
  const parentOf = findParents(traced, trainable, drift);
  const turns = new Map<number, Turn>();
  const order = [...trainable].sort((a, b) => promptLength(traced, a) - promptLength(traced, b));
  for (const index of order) turns.set(index, buildTurn(traced, index, parentOf, turns));
  for (const link of parentOf.values()) {
    const parent = turns.get(link.parent) as Turn;
    if (link.shared < parent.end) parent.trainedEnd = link.shared;
  }
  return trainable.map((index) => turns.get(index) as Turn);
}

interface ParentLink {
  readonly parent: number;
  /** Tokens shared with the parent's context; below its length where drift was absorbed. */
  readonly shared: number;
  readonly observationStart: number;
}

function promptLength(traced: readonly TracedCall[], index: number): number {
  return traced[index]?.call.promptIds?.length ?? 0;
}

function buildTurn(
  traced: readonly TracedCall[],
  index: number,
  parentOf: ReadonlyMap<number, ParentLink>,
  turns: ReadonlyMap<number, Turn>,
): Turn {
  const { call } = traced[index] as TracedCall;
  const link = parentOf.get(index);
  const start = promptLength(traced, index);
  const end = start + (call.responseIds?.length ?? 0);
  return {
    call,
    parent: link === undefined ? null : (turns.get(link.parent) as Turn),
    start,
    end,
    trainedEnd: end,
    observationStart: link?.observationStart ?? 0,
  };
}

function findParents(
  traced: readonly TracedCall[],
  trainable: readonly number[],
  drift: DriftOptions,
): Map<number, ParentLink> {
  const isTrainable = new Set(trainable);
  const parentOf = new Map<number, ParentLink>();
  const hasChild = new Set<number>();
  for (const index of trainable) {
    const nearest = nearestContext(traced[index]?.promptNode ?? null, (i) => isTrainable.has(i));
    if (nearest === null) continue;
    const shared = nearest.node.depth;
    parentOf.set(index, { parent: nearest.callIndex, shared, observationStart: shared });
    hasChild.add(nearest.callIndex);
  }
  const { decode, maxDriftTokens } = drift;
  if (decode === undefined || maxDriftTokens === 0) return parentOf;
  for (const index of trainable) {
    const isCandidate = (i: number) => isTrainable.has(i) && !hasChild.has(i) && i < index;
    const known = parentOf.get(index)?.shared ?? 0;
    const link = findDriftedParent(traced, index, known, isCandidate, decode, maxDriftTokens);
    if (link === null) continue;
    parentOf.set(index, link);
    hasChild.add(link.parent);
  }
  return parentOf;
}

function findDriftedParent(
  traced: readonly TracedCall[],
  index: number,
  known: number,
  isCandidate: (callIndex: number) => boolean,
  decode: DecodeIds,
  maxLostTokens: number,
): ParentLink | null {
  const { call, promptNode } = traced[index] as TracedCall;
  const prompt = call.promptIds as Int32Array;
  let below: TrieNode | null = null;
  for (let node = promptNode; node !== null && node.depth > known; node = node.parent) {
    if (node.depth < prompt.length) {
      for (const parent of contextsNear(node, below, node.depth + maxLostTokens)) {
        const facts = buildDriftFacts(traced, parent, prompt, node.depth);
        if (!isCandidate(parent) || facts.earlierPromptLength < known) continue;
        if (!canAbsorbDrift(facts, decode, maxLostTokens)) continue;
        return { parent, shared: node.depth, observationStart: node.depth };
      }
    }
    below = node;
  }
  return null;
}

function buildDriftFacts(
  traced: readonly TracedCall[],
  parent: number,
  prompt: Int32Array,
  shared: number,
): DriftFacts {
  return {
    earlierPromptLength: promptLength(traced, parent),
    earlierResponse: traced[parent]?.call.responseIds as Int32Array,
    prompt,
    shared,
  };
}

/** Calls whose context ends below `node`, off the branch `except`, at most `maxDepth` deep; in order. */
function contextsNear(node: TrieNode, except: TrieNode | null, maxDepth: number): number[] {
  const found: number[] = [];
  const open = [...(node.children?.values() ?? [])].filter((child) => child !== except);
  for (let visited = 0; open.length > 0; visited++) {
    if (visited + open.length > MAX_DRIFT_CANDIDATES) return [];
    const next = open.pop() as TrieNode;
    if (next.depth > maxDepth) continue;
    found.push(...(next.contexts ?? []));
    open.push(...(next.children?.values() ?? []));
  }
  return found.sort((a, b) => a - b);
}
