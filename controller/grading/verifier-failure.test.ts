import { describe, expect, it } from "vitest";
import { openLog } from "../../runtime/log.ts";
import type { StoredAttempt, StoredRollout } from "../store/rollout-store.ts";
import { verifierFailureOf } from "./verifier-failure.ts";
import { watchVerifier } from "./watch-verifier.ts";

const log = openLog({ level: "silent", process: "test" });
const store = (details: Readonly<Record<string, string | undefined>>) => ({
  attempts: (rolloutId: string) => {
    const detail = details[rolloutId];
    const facts = detail === undefined ? {} : { detail, message: `${detail} of ${rolloutId}` };
    return Promise.resolve([{ rolloutId, ...facts } as StoredAttempt]);
  },
});
const rollout = (rolloutId: string, reward?: number) => ({
  rolloutId,
  ...(reward !== undefined && { reward }),
});

describe("verifierFailureOf", () => {
  const broken = store({ a: "verifier-crashed", b: "verifier-timed-out", c: "exit-code-1" });

  it("says why when the verifier graded nothing", async () => {
    const message = await verifierFailureOf(broken, [rollout("a"), rollout("b")]);
    expect(message).toBe("verifier-crashed of a");
  });

  it.each([
    ["a single reward", [rollout("a"), rollout("b", 0)]],
    ["another cause", [rollout("a"), rollout("c")]],
    ["a verifier that had nothing to say", [rollout("a"), rollout("d")]],
    ["no rollout at all", []],
  ])("%s is not the verifier's failure", async (_, rollouts) => {
    expect(await verifierFailureOf(broken, rollouts)).toBeUndefined();
  });
});

it("the first failure of the verifier is on screen with its reason, the next ones are not", async () => {
  const said: string[] = [];
  const ends = ["verifier-crashed", undefined, "verifier-crashed"];
  const run = watchVerifier(
    async () => {
      const detail = ends.shift();
      if (detail === undefined) return { reason: "succeeded", reward: 1 };
      return { reason: "infra-error", detail, message: "the verifier exited with 1: no such file" };
    },
    { warn: (message) => said.push(message), log },
  );
  for (const attemptId of ["a.1", "b.1", "c.1"]) {
    const { signal } = new AbortController();
    await run({ rolloutId: "a" } as StoredRollout, attemptId, "/", signal, () => undefined);
  }
  expect(said).toEqual(["attempt a.1 was not graded: the verifier exited with 1: no such file"]);
});
