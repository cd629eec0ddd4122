/** Grow-only float32 memory by name, so that a run after the first allocates nothing. */
export interface ScratchPool {
  take(name: string, size: number): Float32Array<ArrayBuffer>;
}

export function createScratchPool(): ScratchPool {
  const arrays = new Map<string, Float32Array<ArrayBuffer>>();
  return {
    take(name, size) {
      const known = arrays.get(name);
      if (known !== undefined && known.length >= size) return known.subarray(0, size);
      const grown = new Float32Array(Math.ceil(size * 1.25));
      arrays.set(name, grown);
      return grown.subarray(0, size);
    },
  };
}
