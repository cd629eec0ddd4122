import { z } from "zod";

/** What a grader made of one attempt. */
export type Grade =
  | { readonly kind: "reward"; readonly reward: number; readonly info?: unknown }
  /** It ran well and has nothing to say: the reward is missing, not zero. */
  | { readonly kind: "silent"; readonly info?: unknown }
  /** It failed itself; says nothing about the attempt. */
  | {
      readonly kind: "failed";
      readonly detail: "verifier-crashed" | "verifier-timed-out" | "verifier-answer-invalid";
      readonly message: string;
    };

/** What a verifier is told about the attempt: one JSON line on its standard input. */
export interface GradeRequest {
  readonly rolloutId: string;
  readonly attemptId: string;
  /** The whole task, with what the harness was not shown. */
  readonly task: Readonly<Record<string, unknown>>;
  readonly endReason: string;
  readonly exitCode: number | null;
  /** Where the harness worked. */
  readonly workspace: string;
  /** Its standard output and error, cut at the experiment's limit. */
  readonly outputFile: string;
  /** The controller's HTTP API with a token of scope `reward` that the harness never had. */
  readonly api?: { readonly url: string; readonly token: string };
}

const answerSchema = z.union([
  z.number(),
  z.looseObject({ reward: z.number().nullish(), info: z.unknown().optional() }),
]);

/** A number, or `{"reward": number | null, "info"?: …}`; anything else is the verifier's fault. */
export function parseGrade(line: string): Grade {
  const invalid = (problem: string): Grade => ({
    kind: "failed",
    detail: "verifier-answer-invalid",
    message: `the verifier's answer ${problem}: ${line.slice(0, 200)}`,
  });
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return invalid("is not JSON");
  }
  const parsed = answerSchema.safeParse(value);
  if (!parsed.success) return invalid("is neither a number nor an object with a reward");
  const answer = parsed.data;
  if (typeof answer === "number") return { kind: "reward", reward: answer };
  const info = answer.info === undefined ? {} : { info: answer.info };
  return typeof answer.reward === "number"
    ? { kind: "reward", reward: answer.reward, ...info }
    : { kind: "silent", ...info };
}
