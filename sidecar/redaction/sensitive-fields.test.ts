import type { DescMessage } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { CallRecordSchema } from "../../proto/gen/outrigger/v1/record_pb.ts";
import { callLines } from "../capture/jsonl-sink.ts";

/** Fields of a message and of those within it, by name and whether they are flagged. */
function fields(message: DescMessage): { name: string; isFlagged: boolean }[] {
  return message.fields.flatMap((field) => [
    {
      name: `${message.name}.${field.name}`,
      isFlagged: field.proto.options?.debugRedact === true,
    },
    ...(field.message === undefined ? [] : fields(field.message)),
  ]);
}

describe("what reveals the text of a call is flagged sensitive", () => {
  it("in the wire format: ids, logprobs and text, and nothing that tells calls apart", () => {
    const flagged = fields(CallRecordSchema).filter(({ isFlagged }) => isFlagged);
    expect(new Set(flagged.map(({ name }) => name))).toEqual(
      new Set(["PackedIds.data", "PackedFloats.data", "TextBody.rest"]),
    );
  });

  it("in the capture file, on every line", () => {
    const call = {
      requestId: "r",
      rolloutId: "o",
      attemptId: "a",
      dialect: "chat",
      streamMode: "none",
      model: "m",
      policyVersion: 0,
      promptIds: new Int32Array([1]),
      choices: [],
      usage: null,
      delivered: true,
      httpStatus: 200,
      timing: { receivedAtMs: 1, finishedAtMs: 2, heldMs: 0 },
      droppedRequestParts: [],
      samplingJson: "{}",
    } as const;
    for (const line of callLines(call)) {
      expect(line["sensitive"]).toEqual(
        expect.arrayContaining(["promptIds", "responseIds", "logprobs"]),
      );
    }
  });
});
