/**
 * A compressed trie of token contexts. An edge is a slice of some call's ids, never a copy, so
 * memory is linear in the number of calls and time linear in the number of tokens.
 */
export interface TrieNode {
  parent: TrieNode | null;
  /** The edge from the parent: `ids[start, end)`. */
  readonly ids: Int32Array;
  start: number;
  readonly end: number;
  /** Number of tokens from the root to the end of the edge. */
  readonly depth: number;
  /** By the first token of the edge. */
  children: Map<number, TrieNode> | null;
  /** Latest call whose ids run through the end of the edge; -1 for none. */
  lastCall: number;
  /** Calls whose context (prompt and response) ends exactly here. */
  contexts: number[] | null;
}

/** Where a walk ended, and where it left what earlier calls had put into the trie. */
export interface TrieWalk {
  readonly node: TrieNode;
  /** The last point shared with an earlier call. */
  readonly departure: TrieNode;
  /** The latest earlier call through `departure`; -1 for none. */
  readonly neighbour: number;
}

const NO_IDS = new Int32Array(0);

export function createTrie(): TrieNode {
  return {
    parent: null,
    ids: NO_IDS,
    start: 0,
    end: 0,
    depth: 0,
    children: null,
    lastCall: -1,
    contexts: null,
  };
}

/** Adds `ids` below `from` on behalf of `call`; the calls must come in rising order. */
export function extendTrie(from: TrieNode, ids: Int32Array, call: number): TrieWalk {
  let node = from;
  let position = 0;
  while (position < ids.length) {
    const child = node.children?.get(ids[position] as number);
    if (child === undefined) break;
    const matched = matchEdge(child, ids, position);
    position += matched;
    const isWhole = matched === child.end - child.start;
    node = isWhole ? child : splitEdge(child, matched);
    if (!isWhole) break;
    if (position < ids.length && node.children?.has(ids[position] as number)) node.lastCall = call;
  }
  const departure = node;
  const neighbour = node.lastCall;
  node.lastCall = call;
  if (position < ids.length) node = addLeaf(node, ids, position, call);
  return { node, departure, neighbour };
}

/** The number of tokens of the child's edge that `ids` follows from `position` on. */
function matchEdge(child: TrieNode, ids: Int32Array, position: number): number {
  const edge = child.ids;
  const offset = position - child.start;
  const end = Math.min(child.end, ids.length - offset);
  let at = child.start + 1;
  while (at < end && edge[at] === ids[at + offset]) at++;
  return at - child.start;
}

/** Puts a node into the child's edge after `length` tokens; the child keeps the lower part. */
function splitEdge(child: TrieNode, length: number): TrieNode {
  const parent = child.parent as TrieNode;
  const cut = child.start + length;
  const middle: TrieNode = {
    parent,
    ids: child.ids,
    start: child.start,
    end: cut,
    depth: parent.depth + length,
    children: new Map([[child.ids[cut] as number, child]]),
    lastCall: child.lastCall,
    contexts: null,
  };
  parent.children?.set(child.ids[child.start] as number, middle);
  child.parent = middle;
  child.start = cut;
  return middle;
}

function addLeaf(parent: TrieNode, ids: Int32Array, start: number, call: number): TrieNode {
  const leaf: TrieNode = {
    parent,
    ids,
    start,
    end: ids.length,
    depth: parent.depth + ids.length - start,
    children: null,
    lastCall: call,
    contexts: null,
  };
  parent.children ??= new Map();
  parent.children.set(ids[start] as number, leaf);
  return leaf;
}
