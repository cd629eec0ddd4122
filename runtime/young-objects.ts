import { setFlagsFromString } from "node:v8";

/**
 * For a process whose objects live as long as a request. V8 would learn from busy moments that some
 * of them live long and make them old from the start; each then keeps all that it refers to, and
 * with it whole calls, from the quick collection of young objects.
 */
export function keepObjectsYoung(): void {
  setFlagsFromString("--no-allocation-site-pretenuring");
}
