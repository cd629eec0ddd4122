/**
 * The task of the `index`-th group of a run: every epoch is a fresh shuffle of all tasks and
 * depends on nothing but the seed, so that a resumed run goes on with the same tasks.
 *
 * @returns function from group index (0, 1, …) to task index (0 … taskCount - 1)
 */
export function taskOrder(seed: number, taskCount: number): (index: number) => number {
  let known = { epoch: -1, order: [] as Int32Array | number[] };
  return (index) => {
    const epoch = Math.floor(index / taskCount);
    if (known.epoch !== epoch) known = { epoch, order: shuffledOrder(seed, epoch, taskCount) };
    return known.order[index % taskCount] as number;
  };
}

/** Fisher-Yates. */
function shuffledOrder(seed: number, epoch: number, taskCount: number): Int32Array {
  const random = mulberry32((seed ^ Math.imul(epoch + 1, 0x9e3779b1)) >>> 0);
  const order = Int32Array.from({ length: taskCount }, (_, i) => i);
  for (let i = taskCount - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    const swapped = order[i] as number;
    order[i] = order[j] as number;
    order[j] = swapped;
  }
  return order;
}

/** Uniform in [0, 1); Tommy Ettinger's mulberry32. */
function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}
