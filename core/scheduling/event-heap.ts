export interface EventHeap<T> {
  readonly size: number;
  /** The lowest key; undefined when the heap is empty. */
  readonly nextKey: number | undefined;
  push(key: number, value: T): void;
  /** The value with the lowest key; among equals the one that was pushed first. */
  pop(): { readonly key: number; readonly value: T } | undefined;
}

interface Entry<T> {
  readonly key: number;
  readonly sequence: number;
  readonly value: T;
}

/** A stable binary heap. */
export function createEventHeap<T>(): EventHeap<T> {
  const heap: Entry<T>[] = [];
  let sequence = 0;
  const isBefore = (a: Entry<T>, b: Entry<T>) =>
    a.key < b.key || (a.key === b.key && a.sequence < b.sequence);

  function siftUp(entry: Entry<T>): void {
    let index = heap.length;
    while (index > 0) {
      const parentIndex = (index - 1) >> 1;
      const parent = heap[parentIndex] as Entry<T>;
      if (isBefore(parent, entry)) break;
      heap[index] = parent;
      index = parentIndex;
    }
    heap[index] = entry;
  }

  function siftDown(entry: Entry<T>): void {
    let index = 0;
    for (;;) {
      let childIndex = 2 * index + 1;
      const left = heap[childIndex];
      if (left === undefined) break;
      const right = heap[childIndex + 1];
      if (right !== undefined && isBefore(right, left)) childIndex += 1;
      const child = heap[childIndex] as Entry<T>;
      if (isBefore(entry, child)) break;
      heap[index] = child;
      index = childIndex;
    }
    heap[index] = entry;
  }

  return {
    get size() {
      return heap.length;
    },
    get nextKey() {
      return heap[0]?.key;
    },
    push(key, value) {
      siftUp({ key, sequence: sequence++, value });
    },
    pop() {
      const first = heap[0];
      const last = heap.pop();
      if (first === undefined || last === undefined) return undefined;
      if (heap.length > 0) siftDown(last);
      return { key: first.key, value: first.value };
    },
  };
}
