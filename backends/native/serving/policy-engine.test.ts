import fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { PolicyEngine, type PolicyEngineOptions, type SampledToken } from "./policy-engine.ts";
import { certain, createScriptedSession, type ScriptedSession } from "./scripted-session.ts";

const vocabSize = 32;
const plain = { temperature: 1, topP: 1, topK: 0 };

/** The next token is a function of the whole context, so a lost or doubled token shows. */
const nextOf = (context: readonly number[]): number =>
  context.reduce((hash, id) => (hash * 31 + id + 7) % 1009, 1) % vocabSize;

const continuation = (prompt: readonly number[], count: number): number[] => {
  const context = [...prompt];
  for (let i = 0; i < count; i++) context.push(nextOf(context));
  return context.slice(prompt.length);
};

let engine: PolicyEngine;
let session: ScriptedSession;

function open(
  options: Partial<PolicyEngineOptions> = {},
  logitsOf: (context: readonly number[]) => Float32Array = (c) => certain(vocabSize, nextOf(c)),
  beforeExtend?: () => Promise<void>,
): void {
  session = createScriptedSession(logitsOf, beforeExtend);
  engine = new PolicyEngine({ session, slots: 4, maxLength: 64, version: 3, seed: 1, ...options });
}

async function sample(
  prompt: readonly number[],
  maxTokens: number,
  more: { seed?: number; signal?: AbortSignal; onToken?: (t: SampledToken) => boolean } = {},
): Promise<SampledToken[]> {
  const tokens: SampledToken[] = [];
  await engine.generate(
    {
      promptIds: Int32Array.from(prompt),
      sampling: plain,
      maxTokens,
      seed: more.seed,
      choiceIndex: 0,
      onToken: (token) => {
        tokens.push(token);
        return more.onToken?.(token) ?? false;
      },
    },
    more.signal,
  );
  return tokens;
}

const idsOf = (tokens: readonly SampledToken[]): number[] => tokens.map((t) => t.id);

afterEach(() => engine.destroy());

describe("PolicyEngine", () => {
  it("continues every prompt by its own context, whatever runs beside it", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.record({
            prompt: fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 12 }),
            count: fc.integer({ min: 1, max: 8 }),
          }),
          { minLength: 1, maxLength: 12 },
        ),
        fc.integer({ min: 1, max: 5 }),
        fc.integer({ min: 1, max: 20 }),
        async (requests, slots, prefillTokensPerStep) => {
          open({ slots, prefillTokensPerStep });
          const results = await Promise.all(requests.map((r) => sample(r.prompt, r.count)));
          results.forEach((tokens, i) => {
            const { prompt, count } = requests[i]!;
            expect(idsOf(tokens)).toEqual(continuation(prompt, count));
            expect(tokens.every((t) => t.version === 3)).toBe(true);
          });
          await engine.close();
        },
      ),
      { numRuns: 60 },
    );
  });

  it("computes only what a grown conversation adds", async () => {
    open();
    const first = [1, 2, 3, 4, 5];
    const answer = idsOf(await sample(first, 3));
    const second = [...first, ...answer, 9, 8];
    const done = session.extends.length;
    await sample(second, 1);
    // The last sampled token was never fed back, so it is computed with the two new ones.
    expect(session.extends.slice(done)).toEqual([
      [{ slot: expect.any(Number) as number, tokens: 3 }],
    ]);
  });

  it("gives each token the version that sampled it, and computes running contexts anew", async () => {
    let offset = 0;
    open({}, (context) => certain(vocabSize, (nextOf(context) + offset) % vocabSize));
    let published: Promise<number> | undefined;
    const prompt = [1, 2, 3];
    const tokens = await sample(prompt, 6, {
      onToken: ({ version }) => {
        published ??= engine.publish(async () => {
          offset = 1;
          return version + 1;
        });
        return false;
      },
    });
    expect(await published).toBe(4);
    expect(tokens.map((t) => t.version)).toEqual([3, 4, 4, 4, 4, 4]);
    const context = [...prompt, tokens[0]!.id];
    for (const token of tokens.slice(1)) {
      expect(token.id).toBe((nextOf(context) + 1) % vocabSize);
      context.push(token.id);
    }
    // Prompt of 3, then the whole context of 4 again under the new weights.
    expect(session.extends.slice(0, 2).map((batch) => batch[0]!.tokens)).toEqual([3, 4]);
  });

  it("forgets cached prefixes of older versions", async () => {
    open();
    await sample([1, 2, 3, 4], 2);
    await engine.publish(async () => 4);
    const done = session.extends.length;
    await sample([1, 2, 3, 4], 1);
    expect(session.extends[done]![0]!.tokens).toBe(4);
  });

  it("keeps version and weights when a publication fails", async () => {
    open();
    const failed = engine.publish(() => Promise.reject(new Error("no")));
    await expect(failed).rejects.toThrow("no");
    expect(engine.version).toBe(3);
    expect(idsOf(await sample([5], 2))).toEqual(continuation([5], 2));
  });

  it("frees the slot of an aborted sequence at once", async () => {
    open({ slots: 1 });
    const abort = new AbortController();
    const endless = sample([1], 60, {
      signal: abort.signal,
      onToken: () => {
        abort.abort(new Error("gone"));
        return false;
      },
    });
    const next = sample([2], 3);
    await expect(endless).rejects.toThrow("gone");
    expect(idsOf(await next)).toEqual(continuation([2], 3));
    expect(session.extends.length).toBeLessThan(8);
  });

  it("takes back an aborted sequence that still waits", async () => {
    let open1 = (): void => undefined;
    const gate = new Promise<void>((resolve) => {
      open1 = resolve;
    });
    open({ slots: 1 }, undefined, () => gate);
    const abort = new AbortController();
    const first = sample([1], 2);
    const waiting = sample([2], 2, { signal: abort.signal });
    abort.abort(new Error("gone"));
    await expect(waiting).rejects.toThrow("gone");
    expect(engine.waitingCount).toBe(0);
    open1();
    expect(await first).toHaveLength(2);
    await expect(sample([2], 2, { signal: AbortSignal.abort(new Error("early")) })).rejects.toThrow(
      "early",
    );
  });

  it("refuses what would wait beyond the bound", async () => {
    let open1 = (): void => undefined;
    const gate = new Promise<void>((resolve) => {
      open1 = resolve;
    });
    open({ slots: 1, maxWaiting: 1 }, undefined, () => gate);
    const taken = [sample([1], 1)];
    await new Promise(setImmediate);
    taken.push(sample([2], 1));
    expect(engine.hasRoomFor(1)).toBe(false);
    await expect(sample([3], 1)).rejects.toMatchObject({ reason: "queue-full", retryable: true });
    open1();
    expect((await Promise.all(taken)).map((t) => t.length)).toEqual([1, 1]);
  });

  it("draws the same for the same seed, and anew for each sampling without one", async () => {
    const flat = (): Float32Array => new Float32Array(vocabSize);
    const run = async (order: readonly number[]): Promise<string[]> => {
      open({ maxLength: 256 }, flat);
      const all = await Promise.all(
        order.map((p) => sample([p], 8).then((t) => `${p}:${idsOf(t).join()}`)),
      );
      await engine.close();
      return all.sort();
    };
    const some = await run([1, 1, 2, 1]);
    expect(new Set(some).size).toBe(4);
    expect(await run([2, 1, 1, 1])).toEqual(some);
    open({}, flat);
    expect(idsOf(await sample([1], 8, { seed: 5 }))).toEqual(
      idsOf(await sample([1], 8, { seed: 5 })),
    );
    expect(idsOf(await sample([1], 8, { seed: 6 }))).not.toEqual(
      idsOf(await sample([1], 8, { seed: 5 })),
    );
  });

  it("fails the running sequences when the computation fails, and goes on", async () => {
    let isBroken = true;
    open({}, undefined, async () => {
      if (isBroken) throw new Error("device lost");
    });
    await expect(sample([1], 2)).rejects.toThrow("device lost");
    isBroken = false;
    expect(idsOf(await sample([1], 2))).toEqual(continuation([1], 2));
  });

  it("fails a sequence whose logits are not finite", async () => {
    open({}, (c) =>
      c[0] === 1 ? new Float32Array(vocabSize).fill(Number.NaN) : certain(vocabSize, 2),
    );
    const [bad, good] = await Promise.allSettled([sample([1], 2), sample([2], 2)]);
    expect(bad).toMatchObject({ status: "rejected", reason: { message: /not finite/ } });
    expect(good.status).toBe("fulfilled");
  });

  it("finishes what runs on close, and refuses more", async () => {
    open();
    const running = sample([1], 5);
    const closed = engine.close();
    await expect(sample([1], 1)).rejects.toMatchObject({ reason: "engine-closed" });
    expect(await running).toHaveLength(5);
    await closed;
  });
});
