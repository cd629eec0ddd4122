/** The recorded context that shares most tokens with a prompt. */
export interface SharedContext<Owner> {
  readonly owner: Owner;
  /** Tokens that the prompt and the owner's context (prompt + response) have in common, > 0. */
  readonly sharedLength: number;
}

/**
 * Remembers the token contexts of records by key (one key per attempt) and finds the one with the
 * longest prefix in common with a new prompt.
 *
 * Each key has a radix tree: a node holds the tokens of its edge and one owner whose context goes
 * through the whole of it. Shared prefixes are stored once, so that a trajectory takes as many
 * tokens as its last context; finding and adding take time linear in the prompt, whatever the
 * number of contexts. Bounded by tokens and by nodes (many short contexts take more memory than
 * their tokens): in all, where the key that was used longest ago goes first, and per key, which
 * then starts anew. What has gone is never an answer again.
 */
export interface ContextIndex<Owner> {
  longest(key: string, prompt: Int32Array): SharedContext<Owner> | undefined;
  add(key: string, owner: Owner, prompt: Int32Array, response: Int32Array): void;
  clear(): void;
  readonly tokenCount: number;
  readonly nodeCount: number;
}

export interface ContextIndexBounds {
  readonly maxTokens: number;
  /** In all; default 16,384. */
  readonly maxNodes?: number;
  /** Default 4,096. */
  readonly maxNodesPerKey?: number;
}

/** A context that leaves an edge in its middle splits it: a node for each part. */
const maxAddedNodes = 2;

interface Node<Owner> {
  tokens: Int32Array;
  readonly owner: Owner;
  children: Map<number, Node<Owner>>;
}

interface Tree<Owner> {
  readonly root: Map<number, Node<Owner>>;
  tokenCount: number;
  nodeCount: number;
}

export function createContextIndex<Owner>(bounds: ContextIndexBounds): ContextIndex<Owner> {
  const { maxTokens, maxNodes = 16_384, maxNodesPerKey = 4_096 } = bounds;
  const trees = new Map<string, Tree<Owner>>();
  let total = 0;
  let totalNodes = 0;

  const touch = (key: string): Tree<Owner> | undefined => {
    const tree = trees.get(key);
    if (tree === undefined) return undefined;
    trees.delete(key);
    trees.set(key, tree);
    return tree;
  };
  const drop = (key: string, tree: Tree<Owner>): void => {
    trees.delete(key);
    total -= tree.tokenCount;
    totalNodes -= tree.nodeCount;
  };
  const isFull = (needed: number): boolean =>
    total + needed > maxTokens || totalNodes + maxAddedNodes > maxNodes;
  const makeRoom = (key: string, needed: number): void => {
    const own = trees.get(key);
    if (own !== undefined && own.nodeCount + maxAddedNodes > maxNodesPerKey) drop(key, own);
    if (!isFull(needed)) return;
    for (const [other, tree] of trees) {
      if (!isFull(needed)) return;
      if (other !== key) drop(other, tree);
    }
    const left = trees.get(key);
    if (left !== undefined && isFull(needed)) drop(key, left);
  };

  return {
    longest: (key, prompt) => {
      const tree = touch(key);
      return tree === undefined ? undefined : longestIn(tree, prompt);
    },
    add: (key, owner, prompt, response) => {
      const needed = prompt.length + response.length;
      if (needed > maxTokens) return;
      // An upper bound: what is shared takes no room, but is not known before the walk.
      makeRoom(key, needed);
      const tree = touch(key) ?? newTree<Owner>();
      const nodesBefore = tree.nodeCount;
      const added = addTo(tree, owner, prompt, response);
      tree.tokenCount += added;
      total += added;
      totalNodes += tree.nodeCount - nodesBefore;
      trees.set(key, tree);
    },
    clear: () => {
      trees.clear();
      total = 0;
      totalNodes = 0;
    },
    get tokenCount() {
      return total;
    },
    get nodeCount() {
      return totalNodes;
    },
  };
}

function newTree<Owner>(): Tree<Owner> {
  return { root: new Map(), tokenCount: 0, nodeCount: 0 };
}

function longestIn<Owner>(tree: Tree<Owner>, prompt: Int32Array): SharedContext<Owner> | undefined {
  let children = tree.root;
  let at = 0;
  let best: SharedContext<Owner> | undefined;
  while (at < prompt.length) {
    const node = children.get(prompt[at] as number);
    if (node === undefined) break;
    const shared = commonLength(node.tokens, prompt, at);
    at += shared;
    best = { owner: node.owner, sharedLength: at };
    if (shared < node.tokens.length) break;
    children = node.children;
  }
  return best;
}

/**
 * Adds the context of prompt and response and gives the number of tokens that were new. The two are
 * walked one after the other: a copy of a long context to add its end would cost as much as the
 * walk.
 */
function addTo<Owner>(
  tree: Tree<Owner>,
  owner: Owner,
  prompt: Int32Array,
  response: Int32Array,
): number {
  const length = prompt.length + response.length;
  let children = tree.root;
  let at = 0;
  while (at < length) {
    const first = (at < prompt.length ? prompt[at] : response[at - prompt.length]) as number;
    const node = children.get(first);
    if (node === undefined) {
      children.set(first, { tokens: endOf(prompt, response, at), owner, children: new Map() });
      tree.nodeCount += 1;
      return length - at;
    }
    let shared = at < prompt.length ? commonLength(node.tokens, prompt, at) : 0;
    if (at + shared >= prompt.length) {
      const rest = node.tokens.subarray(shared);
      shared += commonLength(rest, response, at + shared - prompt.length);
    }
    if (shared < node.tokens.length) {
      const head = splitAt(node, shared);
      tree.nodeCount += 1;
      children.set(first, head);
      children = head.children;
    } else children = node.children;
    at += shared;
  }
  return 0;
}

/** A copy of the context from `at` on. */
function endOf(prompt: Int32Array, response: Int32Array, at: number): Int32Array {
  if (at >= prompt.length) return response.slice(at - prompt.length);
  const tokens = new Int32Array(prompt.length + response.length - at);
  tokens.set(prompt.subarray(at));
  tokens.set(response, prompt.length - at);
  return tokens;
}

function splitAt<Owner>(node: Node<Owner>, length: number): Node<Owner> {
  const tail = { ...node, tokens: node.tokens.subarray(length) };
  return {
    tokens: node.tokens.subarray(0, length),
    owner: node.owner,
    children: new Map([[tail.tokens[0] as number, tail]]),
  };
}

function commonLength(edge: Int32Array, context: Int32Array, from: number): number {
  const limit = Math.min(edge.length, context.length - from);
  let i = 0;
  while (i < limit && edge[i] === context[from + i]) i += 1;
  return i;
}
