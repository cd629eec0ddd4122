import { createHash, timingSafeEqual } from "node:crypto";

const digest = (text: string): Buffer => createHash("sha256").update(text).digest();

/** Whether an `authorization` value carries the key; the time it takes tells nothing of the key. */
export function hasBearerKey(authorization: unknown, key: string): boolean {
  if (typeof authorization !== "string") return false;
  return timingSafeEqual(digest(authorization), digest(`Bearer ${key}`));
}
