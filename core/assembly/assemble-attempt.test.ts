import { describe, expect, it } from "vitest";
import type { CaptureReport } from "../capture-report.ts";
import { assembleAttempt } from "./assemble-attempt.ts";
import type { AssemblyOptions } from "./assembly-options.ts";
import type { CapturedCall } from "./captured-call.ts";
import { buildCall } from "./testing/build-call.ts";

/** Rows as text: `1 2 [3 4] 5` has ids 3 and 4 trained. */
function rowsOf(calls: readonly CapturedCall[], options: AssemblyOptions = {}): string[] {
  return assembleAttempt(calls, options).samples.map(({ tokenIds, lossMask }) => {
    const words = [...tokenIds].map((id, i) => {
      const opens = lossMask[i] === 1 && lossMask[i - 1] !== 1 ? "[" : "";
      const closes = lossMask[i] === 1 && lossMask[i + 1] !== 1 ? "]" : "";
      return `${opens}${id}${closes}`;
    });
    return words.join(" ");
  });
}

function reportOf(calls: readonly CapturedCall[], options: AssemblyOptions = {}): CaptureReport {
  return assembleAttempt(calls, options).report;
}

describe("trajectories", () => {
  it("joins turns whose prompt extends the one before, token for token", () => {
    const calls = [buildCall("c1", [1, 2], [3, 4]), buildCall("c2", [1, 2, 3, 4, 5], [6])];
    expect(rowsOf(calls)).toEqual(["1 2 [3 4] 5 [6]"]);
    const [row] = assembleAttempt(calls).samples;
    expect(row?.callIds).toEqual(["c1", "c2"]);
    expect([...(row?.samplingLogprobs ?? [])]).toEqual([NaN, NaN, -0.375, -0.5, NaN, -0.75]);
    expect([...(row?.policyVersions ?? [])]).toEqual([-1, -1, 1, 1, -1, 1]);
  });

  it("gives every leaf a row and trains shared ancestors in the first of them only", () => {
    const calls = [
      buildCall("c1", [1], [2]),
      buildCall("c2", [1, 2, 3], [4]),
      buildCall("c3", [1, 2, 5], [6]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2] 3 [4]", "1 2 5 [6]"]);
    expect(reportOf(calls)).toMatchObject({ rows: 2, conversations: 1, merged: 2, branches: 1 });
  });

  it("keeps interleaved conversations apart", () => {
    const calls = [
      buildCall("c1", [1, 10], [2]),
      buildCall("c2", [1, 20], [3]),
      buildCall("c3", [1, 10, 2, 11], [4]),
      buildCall("c4", [1, 20, 3, 21], [5]),
    ];
    expect(rowsOf(calls)).toEqual(["1 10 [2] 11 [4]", "1 20 [3] 21 [5]"]);
  });

  it("begins a new row after compaction; the summary itself is an ordinary call", () => {
    const old = [2, 2, 2, 2, 2, 2, 2, 2];
    const calls = [
      buildCall("c1", [1, ...old], [3]),
      buildCall("c2", [1, ...old, 3, 9], [50, 51, 52, 53, 54]),
      buildCall("c3", [1, 50, 51, 52, 53, 8], [4]),
    ];
    expect(rowsOf(calls)).toEqual([
      `1 ${old.join(" ")} [3] 9 [50 51 52 53 54]`,
      "1 50 51 52 53 8 [4]",
    ]);
    expect(reportOf(calls).breaks["history-edited"]).toBe(1);
  });

  it("does not depend on arrival, also where all clocks agree", () => {
    const at = { startedAt: 7 };
    const calls = [
      buildCall("c1", [1], [2], at),
      buildCall("c2", [1, 2, 3], [4], at),
      buildCall("c3", [1, 2, 3], [5], at),
      buildCall("c4", [1, 2, 3, 5, 6], [7], at),
    ];
    const expected = assembleAttempt(calls);
    expect(assembleAttempt(calls.toReversed())).toEqual(expected);
    expect(rowsOf(calls)).toEqual(["1 [2] 3 [4]", "1 2 3 [5] 6 [7]"]);
  });

  it("trains parallel identical calls each, equal answers included", () => {
    const calls = [buildCall("c1", [1, 2], [3, 4]), buildCall("c2", [1, 2], [3, 4])];
    expect(rowsOf(calls)).toEqual(["1 2 [3 4]", "1 2 [3 4]"]);
  });

  it("trains all choices of a request with n > 1, whose usage counts them together", () => {
    const usage = { promptTokens: 1, completionTokens: 5 };
    const calls = [
      buildCall("c1", [1], [2, 3], { requestId: "q", usage }),
      buildCall("c2", [1], [4, 5, 6], { requestId: "q", choiceIndex: 1, usage }),
      buildCall("c3", [1, 4, 5, 6, 7], [8]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2 3]", "1 [4 5 6] 7 [8]"]);
  });

  it("checks a coalesced request with n > 1 against its usage once", () => {
    const usage = { promptTokens: 1, completionTokens: 3 };
    const choices = (id: string) => [
      buildCall(`${id}a`, [1], [2, 3], { requestId: "q", usage, startedAt: 0 }),
      buildCall(`${id}b`, [1], [4], { requestId: "q", choiceIndex: 1, usage, startedAt: 0 }),
    ];
    expect(rowsOf([...choices("x"), ...choices("y")])).toEqual(["1 [2 3]", "1 [4]"]);
  });

  it("trains a response cut by length, and not the end token that the template adds", () => {
    const calls = [
      buildCall("c1", [1], [2, 3], { finishReason: "length" }),
      buildCall("c2", [1, 2, 3, 99, 4], [5]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2 3] 99 4 [5]"]);
  });

  it("keeps several policy versions within one response and one row apart", () => {
    const calls = [
      buildCall("c1", [1], [2, 3, 4], {
        policyVersions: [
          { version: 1, start: 0, end: 1 },
          { version: 2, start: 1, end: 2 },
          { version: 1, start: 2, end: 3 },
        ],
      }),
      buildCall("c2", [1, 2, 3, 4], [5], { policyVersion: 3 }),
    ];
    const [row] = assembleAttempt(calls).samples;
    expect([...(row?.policyVersions ?? [])]).toEqual([-1, 1, 2, 1, 3]);
    expect(rowsOf(calls)).toEqual(["1 [2 3 4 5]"]);
  });

  it("refuses calls of two attempts, which never share a trajectory", () => {
    const calls = [buildCall("c1", [1], [2]), buildCall("c2", [1, 2], [3], { attemptId: "b" })];
    expect(() => assembleAttempt(calls)).toThrowError(/c2 is of attempt r\/b/);
  });

  it("gives no sample where there is nothing to train", () => {
    const empty = { usage: { promptTokens: 1, completionTokens: 0 } };
    expect(assembleAttempt([]).samples).toEqual([]);
    expect(rowsOf([buildCall("c1", [1], [], empty)])).toEqual([]);
    expect(reportOf([buildCall("c1", [1], [], empty)]).calls.empty).toBe(1);
  });
});

describe("what is left out, and only on evidence", () => {
  const undelivered = { delivered: false };

  it("leaves a call out that was never delivered, and keeps the retry", () => {
    const calls = [buildCall("c1", [1], [2], undelivered), buildCall("c2", [1], [3])];
    expect(rowsOf(calls)).toEqual(["1 [3]"]);
    expect(reportOf(calls).tokens.lost.undelivered).toBe(1);
  });

  it("keeps a call recorded as undelivered if a later prompt goes on from it", () => {
    const calls = [buildCall("c1", [1], [2], undelivered), buildCall("c2", [1, 2, 3], [4])];
    expect(rowsOf(calls)).toEqual(["1 [2] 3 [4]"]);
    expect(reportOf(calls).calls).toMatchObject({ proven: 1, undelivered: 0 });
  });

  it("takes an undelivered or incomplete prompt as proof too", () => {
    const next = { delivered: false, complete: false };
    const calls = [
      buildCall("c1", [1], [2], undelivered),
      buildCall("c2", [1, 2, 3], null, { ...next, usage: null }),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2]"]);
  });

  it("takes no proof from a prompt that a delivered call with the same context explains", () => {
    const calls = [
      buildCall("c1", [1], [2], undelivered),
      buildCall("c2", [1], [2], { retryOf: "c1", logprobs: [-3] }),
      buildCall("c3", [1, 2, 3], [4]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2] 3 [4]"]);
    expect(assembleAttempt(calls).samples[0]?.callIds).toEqual(["c2", "c3"]);
  });

  it("leaves a delivered call out that a marked retry superseded, unless it was gone on from", () => {
    const retried = [buildCall("c1", [1], [2]), buildCall("c2", [1], [3], { retryOf: "c1" })];
    expect(rowsOf(retried)).toEqual(["1 [3]"]);
    expect(reportOf(retried).tokens.lost.superseded).toBe(1);
    expect(rowsOf([...retried, buildCall("c3", [1, 2, 4], [5])])).toEqual(["1 [3]", "1 [2] 4 [5]"]);
  });

  it("takes no child as no evidence: best-of-n and orphans are trained", () => {
    const calls = [
      buildCall("c1", [1], [2]),
      buildCall("c2", [1], [3]),
      buildCall("c3", [1], [4]),
      buildCall("c4", [1, 3, 5], [6]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2]", "1 [4]", "1 [3] 5 [6]"]);
  });

  it("trains a replayed answer once, though two records exist", () => {
    const calls = [
      buildCall("c1", [1], [2, 3], undelivered),
      buildCall("c2", [1], [2, 3], { retryOf: "c1" }),
      buildCall("c3", [1, 2, 3, 4], [5]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2 3] 4 [5]"]);
    expect(reportOf(calls).calls).toMatchObject({ replays: 1, samplings: 2, trained: 2 });
    expect(rowsOf(calls.slice(0, 2))).toEqual(["1 [2 3]"]);
  });

  it("trains a coalesced answer once: two records of one request and choice", () => {
    const calls = [
      buildCall("c1", [1], [2, 3], { requestId: "q" }),
      buildCall("c2", [1], [2, 3], { requestId: "q" }),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2 3]"]);
  });

  it("absorbs records that were sent twice", () => {
    const call = buildCall("c1", [1], [2]);
    expect(rowsOf([call, { ...call }, call])).toEqual(["1 [2]"]);
    expect(reportOf([call, { ...call }, call]).calls).toMatchObject({ records: 3, duplicates: 2 });
  });

  it("prefers the better of two records with one id, in either order", () => {
    const poor = buildCall("c1", [1], [2], { delivered: false });
    const good = buildCall("c1", [1], [2]);
    expect(rowsOf([poor, good])).toEqual(["1 [2]"]);
    expect(rowsOf([good, poor])).toEqual(["1 [2]"]);
  });

  it("leaves side calls out unless asked", () => {
    const calls = [buildCall("c1", [1], [2], { sideCall: true }), buildCall("c2", [1, 5], [3])];
    expect(rowsOf(calls)).toEqual(["1 5 [3]"]);
    expect(reportOf(calls).tokens.lost["side-call"]).toBe(1);
    expect(rowsOf(calls, { includeSideCalls: true })).toEqual(["1 [2]", "1 5 [3]"]);
  });
});

describe("incomplete calls", () => {
  const next = buildCall("c2", [1, 2, 3, 4], [5]);
  it.each([
    ["one NaN", { logprobs: [-1, Number.NaN] }, "logprob-not-finite"],
    ["one infinite logprob", { logprobs: [Number.NEGATIVE_INFINITY, -1] }, "logprob-not-finite"],
    ["one clamped logprob", { logprobs: [-9999, -1] }, "logprob-clamped"],
    ["one logprob below the clamp", { logprobs: [-10000, -1] }, "logprob-clamped"],
    ["one logprob above 0", { logprobs: [0.5, -1] }, "logprob-invalid"],
    [
      "a token without a version",
      { policyVersions: [{ version: 2, start: 1, end: 2 }] },
      "policy-versions-invalid",
    ],
    [
      "versions that stop short",
      { policyVersions: [{ version: 2, start: 0, end: 1 }] },
      "policy-versions-invalid",
    ],
    ["one missing logprob", { logprobs: [-1] }, "logprobs-length-mismatch"],
    ["no logprobs", { logprobs: null }, "logprobs-missing"],
    ["a mark", { complete: false, incompleteReason: "stream-cut" }, "stream-cut"],
    [
      "versions out of range",
      { policyVersions: [{ version: 2, start: 0, end: 3 }] },
      "policy-versions-invalid",
    ],
  ])("%s: the whole call is context only", (_, fields, reason) => {
    const calls = [buildCall("c1", [1], [2, 3], fields), next];
    expect(rowsOf(calls)).toEqual(["1 2 3 4 [5]"]);
    const { calls: counts, tokens } = reportOf(calls);
    expect(counts.incomplete).toEqual({ [reason]: 1 });
    expect(counts.masked).toBe(1);
    expect(tokens).toMatchObject({ sampled: 3, trained: 1, withLogprobs: 1 });
    expect(tokens.lost.incomplete).toBe(2);
    expect(rowsOf(calls.slice(0, 1))).toEqual([]);
  });

  it.each([
    [
      "ids beyond usage",
      [2],
      { usage: { promptTokens: 1, completionTokens: 2 } },
      "usage-mismatch",
    ],
    [
      "prompt ids cut",
      [2],
      { usage: { promptTokens: 2, completionTokens: 1 } },
      "prompt-usage-mismatch",
    ],
    ["no response ids", null, { usage: null }, "response-ids-missing"],
    ["ids that nothing vouches for", [2], { complete: false, usage: null }, "marked-incomplete"],
  ])("%s: neither trained nor context", (_, response, fields, reason) => {
    const report = reportOf([buildCall("c1", [1], response, fields)]);
    expect(report.calls.incomplete).toEqual({ [reason]: 1 });
    expect(report.calls.masked).toBe(0);
    expect(report.rows).toBe(0);
  });

  it("cut ids explain no prompt: a whole call with that context is still proven", () => {
    const usage = { promptTokens: 1, completionTokens: 5 };
    const calls = [
      buildCall("c1", [1], [2], { delivered: false }),
      buildCall("c2", [1], [2], { usage }),
      buildCall("c3", [1, 2, 3], [4]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2] 3 [4]"]);
  });

  it("without prompt ids, nothing is known of the context", () => {
    expect(reportOf([buildCall("c1", null, [2])]).calls.incomplete).toEqual({
      "prompt-ids-missing": 1,
    });
    expect(reportOf([buildCall("c1", [], [2])]).calls.incomplete).toEqual({
      "prompt-ids-missing": 1,
    });
  });

  it("still links the turns around a masked call", () => {
    const calls = [
      buildCall("c1", [1], [2]),
      buildCall("c2", [1, 2, 3], [4], { logprobs: null }),
      buildCall("c3", [1, 2, 3, 4, 5], [6]),
    ];
    expect(rowsOf(calls)).toEqual(["1 [2] 3 4 5 [6]"]);
  });
});

describe("length limits", () => {
  const calls = [
    buildCall("c1", [1], [2]),
    buildCall("c2", [1, 2, 3], [4, 5, 6]),
    buildCall("c3", [1, 2, 3, 4, 5, 6, 7], [8]),
    buildCall("c4", [1, 2, 9], [10]),
  ];

  it.each([
    [{}, ["1 [2] 3 [4 5 6] 7 [8]", "1 2 9 [10]"], 0],
    [{ maxRowTokens: 8 }, ["1 [2] 3 [4 5 6] 7 [8]", "1 2 9 [10]"], 0],
    [{ maxRowTokens: 7 }, ["1 [2] 3 [4 5 6]", "1 2 9 [10]"], 1],
    [{ maxRowTokens: 5 }, ["1 [2] 3 [4 5]", "1 2 9 [10]"], 2],
    [{ maxRowTokens: 5, overLength: "drop-call" }, ["1 [2] 9 [10]"], 4],
    [{ maxRowTokens: 7, overLength: "drop-row" }, ["1 [2] 9 [10]"], 4],
    [{ maxRowTokens: 3, overLength: "drop-row" }, [], 6],
    [{ maxRowTokens: 1 }, [], 6],
  ] as const)("%j", (options, rows, lost) => {
    expect(rowsOf(calls, options)).toEqual(rows);
    const { tokens } = reportOf(calls, options);
    expect(tokens.lost["over-length"]).toBe(lost);
    expect(tokens.sampled).toBe(tokens.trained + lost);
  });

  it("tells prompts without room from responses that were cut", () => {
    expect(reportOf(calls, { maxRowTokens: 5 }).overLength).toEqual({
      prompt: 1,
      response: 1,
      rows: 0,
    });
  });
});

describe("drift", () => {
  // Ids are letters; 100 + 26 a + b is the pair ab in one id.
  const decode = (ids: Int32Array) =>
    [...ids]
      .map((id) =>
        id < 100
          ? String.fromCharCode(97 + id)
          : String.fromCharCode(97 + Math.floor((id - 100) / 26), 97 + ((id - 100) % 26)),
      )
      .join("");
  const cd = 100 + 26 * 2 + 3;
  const first = buildCall("c1", [0], [1, 2, 3]);
  const drifted = buildCall("c2", [0, 1, cd, 7], [8]);

  it("is absorbed where the text is equal: trained up to the first differing token", () => {
    expect(rowsOf([first, drifted], { decode })).toEqual(["0 [1] 155 7 [8]"]);
    const report = reportOf([first, drifted], { decode });
    expect(report).toMatchObject({ absorbedDrifts: 1, rows: 1 });
    expect(report.tokens.lost.drift).toBe(2);
    expect(report.breaks["re-tokenisation"]).toBe(1);
  });

  it("is a branch without a decoder, and counted", () => {
    expect(rowsOf([first, drifted])).toEqual(["0 [1 2 3]", "0 1 155 7 [8]"]);
    expect(reportOf([first, drifted]).breaks["history-edited"]).toBe(1);
  });

  it.each([
    ["the text differs", first, buildCall("c2", [0, 1, 154, 7], [8])],
    [
      "nothing of the response would stay",
      buildCall("c1", [0], [2, 3]),
      buildCall("c2", [0, cd, 7], [8]),
    ],
    [
      "too much would be given up",
      buildCall("c1", [0], [1, 2, 3, 4, 4, 4, 4]),
      buildCall("c2", [0, 1, cd, 4, 4, 4, 4, 7], [8]),
    ],
    ["the prompt ends inside the drift", first, buildCall("c2", [0, 1, 2], [8])],
  ])("is a branch where %s", (_, earlier, later) => {
    const { samples, report } = assembleAttempt([earlier, later], { decode });
    expect(samples).toHaveLength(2);
    expect(report.tokens.lost.drift).toBe(0);
  });

  it("gives nothing up where another turn goes on exactly", () => {
    const exact = buildCall("c3", [0, 1, 2, 3, 6], [9]);
    expect(rowsOf([first, drifted, exact], { decode })).toEqual([
      "0 1 155 7 [8]",
      "0 [1 2 3] 6 [9]",
    ]);
  });

  it("can be turned off", () => {
    expect(rowsOf([first, drifted], { decode, maxDriftTokens: 0 })).toHaveLength(2);
  });

  it("goes on through several drifted turns", () => {
    const second = buildCall("c2", [0, 1, cd, 7], [8, 2, 3]);
    const third = buildCall("c3", [0, 1, cd, 7, 8, cd, 9], [5]);
    expect(rowsOf([first, second, third], { decode })).toEqual(["0 [1] 155 7 [8] 155 9 [5]"]);
  });
});

describe("breaks between turns", () => {
  const [think, endThink, end] = [70, 71, 72];
  const earlier = buildCall("c1", [1, 2, 3], [think, 40, 41, endThink, 50, 51, end]);
  it.each([
    ["thinking stripped by the template", [1, 2, 3, 50, 51, end, 4], "template"],
    ["white space put in", [1, 2, 3, 99, think, 40, 41, endThink, 50, 51, end, 4], "template"],
    ["another end token", [1, 2, 3, think, 40, 41, endThink, 50, 51, 90, 4], "template"],
    [
      "a generation prompt that is not in history",
      [1, 2, 80, think, 40, 41, endThink, 50, 51, end, 4],
      "template",
    ],
    ["an answer rewritten by the agent", [1, 2, 3, 60, 61, 62, 4], "history-edited"],
  ])("%s", (_, prompt, kind) => {
    const { breaks, rows } = reportOf([earlier, buildCall("c2", prompt, [5])]);
    expect(breaks).toEqual({ template: 0, "re-tokenisation": 0, "history-edited": 0, [kind]: 1 });
    expect(rows).toBe(2);
  });

  it("old history edited before a response that is quoted whole", () => {
    const long = Array.from({ length: 20 }, (_, i) => 200 + i);
    const calls = [
      buildCall("c1", long, [1, 2, 3, 4, 5]),
      buildCall("c2", [200, 201, 30, 1, 2, 3, 4, 5, 6], [7]),
    ];
    expect(reportOf(calls).breaks["history-edited"]).toBe(1);
  });

  it.each([
    ["an exact turn", [buildCall("c2", [1, 2, 3, 70, 40, 41, 71, 50, 51, 72, 4], [5])]],
    ["a sibling with the same prompt", [buildCall("c2", [1, 2, 3], [5])]],
    ["another conversation", [buildCall("c2", [1, 9, 9, 9], [5])]],
    [
      "two branches from one turn",
      [
        buildCall("c2", [1, 2, 3, 70, 40, 41, 71, 50, 51, 72, 4], [5]),
        buildCall("c3", [1, 2, 3, 70, 40, 41, 71, 50, 51, 72, 6], [5]),
      ],
    ],
  ])("none: %s", (_, later) => {
    expect(reportOf([earlier, ...later]).breaks).toEqual({
      template: 0,
      "re-tokenisation": 0,
      "history-edited": 0,
    });
  });
});
