import { deflateRawSync } from "node:zlib";
import { type SharedEnds, sharedEnds } from "../../core/records/shared-ends.ts";
import type { TextBody } from "../../proto/gen/outrigger/v1/record_pb.ts";

interface Base {
  readonly requestId: string;
  readonly text: Uint8Array;
}

/** The last request texts of each attempt, to encode the next one against. */
export interface TextBases {
  /** Against the kept text that shares most with it. */
  encode(key: string, text: Uint8Array): TextBody;
  add(key: string, requestId: string, text: Uint8Array): void;
  clear(): void;
}

/** So many texts are kept per attempt: a few subagents that take turns. */
const basesPerKey = 4;
const minDeflateBytes = 128;

/** What a kept text takes beside its bytes. */
const baseMemoryBytes = 256;

/** Bounded by `maxBytes` in all; the attempt that was used longest ago goes first. */
export function createTextBases(maxBytes: number): TextBases {
  const kept = new Map<string, Base[]>();
  let total = 0;
  const forget = (bases: readonly Base[]): void => {
    for (const base of bases) total -= base.text.length + baseMemoryBytes;
  };
  return {
    encode: (key, text) => encodeAgainst(kept.get(key) ?? [], text),
    add: (key, requestId, text) => {
      if (text.length > maxBytes) return;
      const bases = kept.get(key) ?? [];
      kept.delete(key);
      bases.push({ requestId, text });
      total += text.length + baseMemoryBytes;
      if (bases.length > basesPerKey) forget(bases.splice(0, 1));
      kept.set(key, bases);
      for (const [oldest, others] of kept) {
        if (total <= maxBytes) break;
        if (oldest === key) forget(others.splice(0, others.length - 1));
        else {
          kept.delete(oldest);
          forget(others);
        }
      }
    },
    clear: () => {
      kept.clear();
      total = 0;
    },
  };
}

function encodeAgainst(bases: readonly Base[], text: Uint8Array): TextBody {
  let best: { base: Base; ends: SharedEnds } | undefined;
  for (const base of bases) {
    const ends = sharedEnds(base.text, text);
    const shared = ends.prefixBytes + ends.suffixBytes;
    if (best === undefined || shared > best.ends.prefixBytes + best.ends.suffixBytes)
      best = { base, ends };
  }
  const prefixBytes = best?.ends.prefixBytes ?? 0;
  const suffixBytes = best?.ends.suffixBytes ?? 0;
  const rest = encodeText(text.subarray(prefixBytes, text.length - suffixBytes));
  if (best === undefined || prefixBytes + suffixBytes === 0) return rest;
  rest.baseRequestId = best.base.requestId;
  rest.sharedBytes = prefixBytes;
  rest.sharedSuffixBytes = suffixBytes;
  return rest;
}

/** A text without a base. */
export function encodeText(text: Uint8Array): TextBody {
  if (text.length >= minDeflateBytes) {
    const deflated = deflateRawSync(text, { level: text.length > 1_000_000 ? 1 : 6 });
    if (deflated.length < text.length) return textBody(deflated, true);
  }
  // A copy: the captured body may be a view of a much larger buffer.
  return textBody(text.slice(), false);
}

/** Written out: `create` walks descriptors. */
function textBody(rest: Uint8Array, deflated: boolean): TextBody {
  return {
    $typeName: "outrigger.v1.TextBody",
    baseRequestId: "",
    sharedBytes: 0,
    rest,
    deflated,
    sharedSuffixBytes: 0,
  };
}
