import { describe, expect, it } from "vitest";
import { createSseDecoder } from "../sse/sse-decoder.ts";
import { type CaptureResult, createCallCapture } from "./call-capture.ts";

function captureStream(lines: readonly unknown[]): CaptureResult {
  const capture = createCallCapture();
  const text = lines.map(
    (line) => `data: ${typeof line === "string" ? line : JSON.stringify(line)}\n\n`,
  );
  for (const block of createSseDecoder().push(Buffer.from(text.join("")))) capture.addBlock(block);
  return capture.result();
}

function captureWhole(response: unknown): CaptureResult {
  const capture = createCallCapture();
  capture.addResponse(response);
  return capture.result();
}

const logprobs = (...values: number[]) => ({ content: values.map((logprob) => ({ logprob })) });
const usage = (prompt_tokens: number, completion_tokens: number) => ({
  choices: [],
  usage: { prompt_tokens, completion_tokens },
});

describe("capture of a vLLM chat stream", () => {
  it("joins several tokens per chunk, prompt ids of the first chunk and usage of the last", () => {
    const result = captureStream([
      {
        id: "c1",
        model: "m",
        prompt_token_ids: [1, 2, 3],
        choices: [
          { index: 0, delta: { role: "assistant", content: "" }, token_ids: null, logprobs: null },
        ],
      },
      {
        choices: [
          { index: 0, delta: { content: "Hi" }, token_ids: [4, 5], logprobs: logprobs(-1, -2) },
        ],
      },
      {
        choices: [
          { index: 0, delta: { reasoning_content: "hm" }, token_ids: [6], logprobs: logprobs(-3) },
        ],
      },
      {
        choices: [
          {
            index: 0,
            delta: {},
            finish_reason: "stop",
            stop_reason: "END",
            token_ids: [],
            logprobs: null,
          },
        ],
      },
      usage(3, 3),
      "[DONE]",
    ]);
    const [choice] = result.choices;
    expect(choice).toMatchObject({
      complete: true,
      text: "Hi",
      reasoning: "hm",
      finishReason: "stop",
      stopReason: "END",
    });
    expect([...(choice?.promptIds ?? [])]).toEqual([1, 2, 3]);
    expect([...(choice?.responseIds ?? [])]).toEqual([4, 5, 6]);
    expect([...(choice?.logprobs ?? [])]).toEqual([-1, -2, -3]);
    expect(result).toMatchObject({
      engineModel: "m",
      engineRequestId: "c1",
      usage: { promptTokens: 3, completionTokens: 3 },
    });
  });

  it("keeps n > 1 apart and counts usage over all of them", () => {
    const result = captureStream([
      {
        prompt_token_ids: [1],
        choices: [
          { index: 0, token_ids: [2], logprobs: logprobs(-1), delta: {} },
          { index: 1, token_ids: [3, 4], logprobs: logprobs(-1, -2), delta: {} },
        ],
      },
      { choices: [{ index: 1, delta: {}, finish_reason: "length" }] },
      { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] },
      usage(1, 3),
    ]);
    expect(
      result.choices.map((choice) => [
        choice.choiceIndex,
        choice.complete,
        choice.responseIds?.length,
        choice.promptIds?.length,
      ]),
    ).toEqual([
      [0, true, 1, 1],
      [1, true, 2, 1],
    ]);
  });

  it("keeps the partial output of an aborted call and marks it", () => {
    const result = captureStream([
      {
        prompt_token_ids: [1],
        choices: [{ index: 0, token_ids: [2], logprobs: logprobs(-1), delta: { content: "par" } }],
      },
    ]);
    expect(result.choices[0]).toMatchObject({
      complete: false,
      incompleteReason: "finish-missing",
      text: "par",
    });
    expect([...(result.choices[0]?.responseIds ?? [])]).toEqual([2]);
  });

  it("reads a NaN logprob as incomplete and keeps the ids beside it", () => {
    const result = captureStream([
      '{"prompt_token_ids":[1],"choices":[{"index":0,"token_ids":[2],"logprobs":{"content":[{"logprob":NaN}]},"delta":{},"finish_reason":"stop"}]}',
      usage(1, 1),
    ]);
    expect(result.choices[0]).toMatchObject({ incompleteReason: "logprob-not-finite" });
    expect([...(result.choices[0]?.responseIds ?? [])]).toEqual([2]);
  });

  it("notes an event that was no JSON and an error inside the stream", () => {
    const finish = {
      prompt_token_ids: [1],
      choices: [
        { index: 0, token_ids: [2], logprobs: logprobs(-1), delta: {}, finish_reason: "stop" },
      ],
    };
    expect(captureStream([finish, "{oops", usage(1, 1)]).choices[0]?.incompleteReason).toBe(
      "event-unreadable",
    );
    const failed = captureStream([finish, { error: { message: "out of memory" } }]);
    expect(failed).toMatchObject({
      engineError: "out of memory",
      choices: [{ incompleteReason: "engine-error" }],
    });
    expect(captureStream([{ object: "error", message: "old style" }]).engineError).toBe(
      "old style",
    );
  });

  it("ignores what follows [DONE]", () => {
    const finish = {
      prompt_token_ids: [1],
      choices: [
        { index: 0, token_ids: [2], logprobs: logprobs(-1), delta: {}, finish_reason: "stop" },
      ],
    };
    expect(
      captureStream([finish, usage(1, 1), "[DONE]", "[DONE]", finish, "junk"]).choices[0],
    ).toMatchObject({ complete: true });
  });

  it("takes policy version spans from the finish chunk, also when the version changed within", () => {
    const spans = [
      { version: 7, start: 0, end: 1 },
      { version: 8, start: 1, end: 2 },
    ];
    const chunk = (more: object) => ({
      prompt_token_ids: [1],
      choices: [
        {
          index: 0,
          token_ids: [2, 3],
          logprobs: logprobs(-1, -1),
          delta: {},
          finish_reason: "stop",
          ...more,
        },
      ],
    });
    expect(
      captureStream([chunk({ policy_versions: spans }), usage(1, 2)]).choices[0],
    ).toMatchObject({ complete: true, policyVersions: spans });
    const asText = spans.map((span) => ({ ...span, version: String(span.version) }));
    expect(
      captureStream([chunk({ weight_versions: asText }), usage(1, 2)]).choices[0],
    ).toMatchObject({ policyVersions: spans });
  });

  it("puts tool call fragments together, with and without index and id", () => {
    const delta = (...calls: object[]) => ({
      choices: [{ index: 0, delta: { tool_calls: calls } }],
    });
    const result = captureStream([
      delta({ index: 0, id: "a", function: { name: "f", arguments: '{"x"' } }),
      delta({ index: 1, id: "b", function: { name: "g", arguments: "" } }),
      delta({ index: 0, function: { arguments: ":1}" } }),
      delta({ index: 0, id: "c", function: { name: "h", arguments: "{}" } }),
      delta({ function: { name: "", arguments: " " } }),
    ]);
    expect(result.choices[0]?.toolCalls).toEqual([
      { id: "a", name: "f", arguments: '{"x":1}' },
      { id: "b", name: "g", arguments: "" },
      { id: "c", name: "h", arguments: "{} " },
    ]);
  });
});

describe("capture of other answers", () => {
  it("reads a whole vLLM chat completion", () => {
    const result = captureWhole({
      prompt_token_ids: [1, 2],
      choices: [
        {
          index: 0,
          message: {
            role: "assistant",
            content: "a",
            tool_calls: [{ id: "t", function: { name: "f", arguments: "{}" } }],
          },
          logprobs: logprobs(-0.5),
          token_ids: [9],
          finish_reason: "tool_calls",
        },
      ],
      usage: {
        prompt_tokens: 2,
        completion_tokens: 1,
        prompt_tokens_details: { cached_tokens: 1 },
      },
    });
    expect(result.choices[0]).toMatchObject({
      complete: true,
      text: "a",
      toolCalls: [{ id: "t", name: "f", arguments: "{}" }],
    });
    expect(result.usage).toMatchObject({ cachedTokens: 1, reasoningTokens: 0 });
  });

  it("reads SGLang's meta_info, its weight version and matched stop", () => {
    const result = captureWhole({
      choices: [
        {
          index: 0,
          message: { content: "a" },
          prompt_token_ids: [1],
          matched_stop: 151645,
          finish_reason: "stop",
          meta_info: {
            output_token_logprobs: [
              [-0.25, 9, "a"],
              [-0.5, 10, null],
            ],
            weight_version: "12",
          },
        },
      ],
      usage: { prompt_tokens: 1, completion_tokens: 2 },
    });
    expect(result.choices[0]).toMatchObject({
      complete: true,
      stopReason: 151645,
      policyVersions: [{ version: 12, start: 0, end: 2 }],
    });
    expect([...(result.choices[0]?.responseIds ?? [])]).toEqual([9, 10]);
    expect([...(result.choices[0]?.logprobs ?? [])]).toEqual([-0.25, -0.5]);
  });

  it("reads a text completion of several prompts", () => {
    const choice = (index: number, prompt: number[], id: number) => ({
      index,
      text: "t",
      prompt_token_ids: prompt,
      token_ids: [id],
      logprobs: { token_logprobs: [-1], tokens: ["t"] },
      finish_reason: "length",
    });
    const result = captureWhole({
      choices: [choice(0, [1], 5), choice(1, [2, 3], 6)],
      usage: { prompt_tokens: 3, completion_tokens: 2 },
    });
    expect(result.choices.map((entry) => [entry.complete, [...(entry.promptIds ?? [])]])).toEqual([
      [true, [1]],
      [true, [2, 3]],
    ]);
  });

  it("says so when an engine reports no ids at all", () => {
    const result = captureWhole({
      choices: [{ index: 0, message: { content: "a" }, finish_reason: "stop" }],
      usage: { prompt_tokens: 1, completion_tokens: 1 },
    });
    expect(result.choices[0]).toMatchObject({
      promptIds: null,
      responseIds: null,
      logprobs: null,
      incompleteReason: "prompt-ids-missing",
    });
  });

  it.each([undefined, null, 3, "x", [], {}, { choices: 3 }, { choices: [null, 3, []] }])(
    "is total over %j",
    (value) => {
      expect(captureWhole(value).choices).toEqual([]);
    },
  );
});

describe("numbers of an engine that no record can carry", () => {
  const answer = (choice: object, tokens: object = {}) => ({
    prompt_token_ids: [1],
    choices: [
      { index: 0, finish_reason: "stop", token_ids: [5], logprobs: logprobs(-1), ...choice },
    ],
    usage: { prompt_tokens: 1, completion_tokens: 1, ...tokens },
  });

  const beyond = [-1, 1.5, 2 ** 32, 1e20, 1e300];
  it.each(beyond)("an index of %d: nobody knows whose tokens these are", (index) => {
    for (const result of [captureWhole(answer({ index })), captureStream([answer({ index })])]) {
      expect(result.choices).toHaveLength(1);
      expect(result.choices[0]).toMatchObject({
        choiceIndex: 0,
        incompleteReason: "event-unreadable",
      });
    }
  });

  it.each(beyond)("a usage of %d is none", (count) => {
    for (const name of ["prompt_tokens", "completion_tokens"]) {
      const result = captureWhole(answer({}, { [name]: count }));
      expect(result.usage).toBeNull();
      expect(result.choices[0]?.incompleteReason).toBe("usage-missing");
    }
    const details = { prompt_tokens_details: { cached_tokens: count } };
    expect(captureWhole(answer({}, details)).usage?.cachedTokens).toBe(0);
  });

  it.each(beyond)("a span with %d in it is invalid", (value) => {
    const span = { version: 1, start: 0, end: 1 };
    for (const name of ["start", "end"]) {
      const policy_versions = [{ ...span, [name]: value }];
      const [choice] = captureWhole(answer({ policy_versions })).choices;
      expect(choice?.incompleteReason).toBe("policy-versions-invalid");
      expect(choice?.policyVersions?.[0]).toMatchObject({ [name]: Number.NaN });
    }
  });

  it.each([-1, 0.5, 2 ** 60])("a policy version of %d is invalid", (version) => {
    const policy_versions = [{ version, start: 0, end: 1 }];
    const [choice] = captureWhole(answer({ policy_versions })).choices;
    expect(choice?.incompleteReason).toBe("policy-versions-invalid");
    expect(choice?.policyVersions?.[0]?.version).toBeNaN();
  });
});
