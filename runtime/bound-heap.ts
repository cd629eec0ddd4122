import { getHeapSpaceStatistics, setFlagsFromString } from "node:v8";

/** Both halves of the young generation. V8's own bound is 32 MiB or more. */
const maxYoungBytes = 8 * 1024 ** 2;
const checkEveryMs = 250;

/**
 * For a process with a small heap that lives long:
 * - it is collected after it has grown by half, where V8 would let 12 MiB become 60 first;
 * - the young generation stops growing at 8 MiB (on Node 20; on later ones it grows less);
 * - what a call needs is never made old from the start, which V8 does with what survived a busy
 *   moment: an old object keeps all that it refers to from the quick collection of the young;
 * - WebAssembly (undici's parser of HTTP) is left as it was first compiled, because the optimising
 *   compiler takes 35 MiB for it, which malloc may then keep.
 *
 * To be called when the process has started, before it first connects. Given to Node as options the
 * same would make Node compile its own modules anew, which delays the start by 60 ms. V8 reads these
 * values whenever it needs them; one that does not know them goes on as it would.
 */
export function boundHeap(): void {
  setFlagsFromString("--liftoff-only");
  setFlagsFromString("--heap-growing-percent=50");
  setFlagsFromString("--no-allocation-site-pretenuring");
  limitYoungGeneration();
  setInterval(limitYoungGeneration, checkEveryMs).unref();
}

/** It grows by the factor when much of it survives, and shrinks when the process is idle. */
function limitYoungGeneration(): void {
  const young = getHeapSpaceStatistics().find((space) => space.space_name === "new_space");
  const mayGrow = young === undefined || young.space_size < maxYoungBytes;
  setFlagsFromString(`--semi-space-growth-factor=${mayGrow ? 2 : 1}`);
}
