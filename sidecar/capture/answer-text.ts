import type { CapturedChoice, CaptureResult } from "../dialects/call-capture.ts";

/**
 * The captured answer as one chat completion's JSON text, the same whether it was streamed or not;
 * ids and logprobs are elsewhere in the record.
 */
export function answerText(result: CaptureResult): Buffer {
  return Buffer.from(
    JSON.stringify({
      id: result.engineRequestId,
      model: result.engineModel,
      choices: result.choices.map(choiceText),
      ...(result.engineError === null ? {} : { error: result.engineError }),
    }),
  );
}

function choiceText(choice: CapturedChoice): unknown {
  return {
    index: choice.choiceIndex,
    message: {
      role: "assistant",
      content: choice.text,
      ...(choice.reasoning === "" ? {} : { reasoning_content: choice.reasoning }),
      ...(choice.toolCalls.length === 0
        ? {}
        : {
            tool_calls: choice.toolCalls.map((call) => ({
              id: call.id,
              type: "function",
              function: { name: call.name, arguments: call.arguments },
            })),
          }),
    },
    finish_reason: choice.finishReason,
  };
}
