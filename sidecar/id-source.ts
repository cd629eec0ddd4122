import { randomUUID } from "node:crypto";

/**
 * Makes ids that are unique in the world: a prefix, 16 hex digits that are random per source, and
 * 8 that count. `newId("msg_")` gives `msg_` and 24 digits.
 */
export function createIdSource(): (prefix: string) => string {
  const own = randomUUID().replaceAll("-", "").slice(0, 16);
  let count = 0;
  return (prefix) => {
    count = (count + 1) % 0x1_0000_0000;
    return prefix + own + count.toString(16).padStart(8, "0");
  };
}
