import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type AttemptEndReason, attemptEndReasons } from "./attempt-end-reason.ts";
import { defaultFailurePolicy } from "./failure-policy.ts";
import {
  isTerminal,
  newRollout,
  nextRolloutState,
  type Rollout,
  type RolloutEvent,
} from "./rollout-state.ts";

const policy = defaultFailurePolicy;
const apply = (rollout: Rollout, event: RolloutEvent) =>
  nextRolloutState(rollout, event, policy).rollout;
const lease = (attemptId: string): RolloutEvent => ({ type: "attempt-leased", attemptId });
const started = (attemptId: string): RolloutEvent => ({ type: "attempt-started", attemptId });
const ended = (attemptId: string, reason: AttemptEndReason): RolloutEvent => ({
  type: "attempt-ended",
  attemptId,
  reason,
});
const expired = (attemptId: string): RolloutEvent => ({ type: "lease-expired", attemptId });
const cancel: RolloutEvent = { type: "cancel-requested" };
const rejected: RolloutEvent = { type: "rejected" };
const run = (...events: RolloutEvent[]) => events.reduce(apply, newRollout("r"));

describe("nextRolloutState", () => {
  it.each([
    ["nothing yet", [], "queued", undefined],
    ["leased", [lease("a")], "running", undefined],
    ["succeeded", [lease("a"), ended("a", "succeeded")], "succeeded", "a"],
    ["truncated is an outcome", [lease("a"), ended("a", "truncated")], "succeeded", "a"],
    ["the agent's error is an outcome", [lease("a"), ended("a", "agent-error")], "failed", "a"],
    ["the agent's time-out is an outcome", [lease("a"), ended("a", "timed-out")], "failed", "a"],
    ["never called", [lease("a"), ended("a", "never-called")], "failed", undefined],
    ["evicted goes back", [lease("a"), ended("a", "evicted")], "queued", undefined],
    ["lost lease goes back", [lease("a"), expired("a")], "queued", undefined],
    [
      "second attempt accepted",
      [lease("a"), ended("a", "evicted"), lease("b"), ended("b", "succeeded")],
      "succeeded",
      "b",
    ],
    [
      "re-queue limit of infra-error is 2",
      [lease("a"), expired("a"), lease("b"), expired("b"), lease("c"), expired("c")],
      "failed",
      undefined,
    ],
    ["cancelled while queued", [cancel], "cancelled", undefined],
    ["cancel waits for the attempt", [lease("a"), cancel], "running", undefined],
    ["cancelled attempt", [lease("a"), cancel, ended("a", "cancelled")], "cancelled", undefined],
    ["success beats the cancel", [lease("a"), cancel, ended("a", "succeeded")], "succeeded", "a"],
    ["no re-queue after a cancel", [lease("a"), cancel, ended("a", "evicted")], "cancelled"],
    ["cannot be started at all", [rejected], "failed", undefined],
  ] as const)("%s", (_name, events, state, accepted?: string) => {
    const rollout = run(...events);
    expect(rollout.state).toBe(state);
    expect(rollout.acceptedAttemptId).toBe(accepted);
  });

  it.each([
    ["twice leased", [lease("a")], lease("a"), "duplicate"],
    ["leased by two", [lease("a")], lease("b"), "already-running"],
    ["ended twice alike", [lease("a"), ended("a", "evicted")], ended("a", "evicted"), "duplicate"],
    ["ended otherwise", [lease("a"), expired("a")], ended("a", "succeeded"), "attempt-ended"],
    ["unknown attempt", [lease("a")], ended("z", "succeeded"), "attempt-unknown"],
    ["started after its end", [lease("a"), expired("a")], started("a"), "attempt-ended"],
    ["started twice", [lease("a"), started("a")], started("a"), "duplicate"],
    ["after the end", [lease("a"), ended("a", "succeeded")], cancel, "rollout-terminal"],
    ["rejected while running", [lease("a")], rejected, "already-running"],
  ] as const)("says why it ignores an event: %s", (_name, events, event, ignored) => {
    const before = run(...events);
    expect(nextRolloutState(before, event, policy)).toEqual({
      rollout: before,
      isChanged: false,
      ignored,
    });
  });
});

/** The true story of one rollout: how its attempts end one after the other, and a cancel. */
interface Story {
  readonly reasons: readonly AttemptEndReason[];
  /** A cancel is asked for once this many attempts have ended and before the next is leased. */
  readonly cancelAfter: number | undefined;
}

/**
 * Runs the story against the state machine: the controller leases when the rollout is queued, the
 * runner reports. `pick(n)` chooses among the n things that can happen next: deliver any report
 * that was ever sent (late, doubled and out of order all follow), lease, or restart (the state is
 * written and read back). Whenever picks run out, what is left is delivered in order.
 */
function live(story: Story, pick: (n: number) => number | undefined): Rollout {
  let rollout = newRollout("r");
  const sent: RolloutEvent[] = [];
  const leased: string[] = [];
  const delivered = new Set<RolloutEvent>();
  const canLease = () => rollout.state === "queued" && story.cancelAfter !== leased.length;
  const deliver = (event: RolloutEvent) => {
    delivered.add(event);
    rollout = apply(rollout, event);
  };
  const leaseNext = () => {
    const attemptId = `a${leased.length}`;
    leased.push(attemptId);
    rollout = apply(rollout, lease(attemptId));
    const reason = story.reasons[leased.length - 1] ?? "infra-error";
    sent.push(started(attemptId), ended(attemptId, reason), expired(attemptId));
    if (reason !== "infra-error") sent.pop();
  };
  if (story.cancelAfter === 0) sent.push(cancel);
  while (!isTerminal(rollout.state)) {
    if (rollout.state === "queued" && story.cancelAfter === leased.length) sent.push(cancel);
    const choice = pick(sent.length + 2);
    if (choice === undefined) {
      const next = sent.find((event) => !delivered.has(event));
      if (canLease()) leaseNext();
      else if (next !== undefined) deliver(next);
    } else if (choice === 0) rollout = JSON.parse(JSON.stringify(rollout)) as Rollout;
    else if (choice === 1) {
      if (canLease()) leaseNext();
    } else {
      const event = sent[choice - 2];
      if (event !== undefined) deliver(event);
    }
  }
  // Everything comes again after the end, backwards.
  for (const event of sent.toReversed()) deliver(event);
  return rollout;
}

const story: fc.Arbitrary<Story> = fc.record({
  reasons: fc.array(fc.constantFrom(...attemptEndReasons, "evicted", "infra-error"), {
    maxLength: 8,
  }),
  cancelAfter: fc.option(fc.nat(4), { nil: undefined }),
});

describe("rollout state machine", () => {
  it("converges to one terminal state for late, doubled, reordered events and restarts", () => {
    fc.assert(
      fc.property(story, fc.array(fc.nat(1000), { maxLength: 60 }), (truth, picks) => {
        const expected = live(truth, () => undefined);
        let next = 0;
        const actual = live(truth, (n) => {
          const raw = picks[next++];
          return raw === undefined ? undefined : raw % n;
        });
        const outcome = ({ state, acceptedAttemptId, attempts }: Rollout) => ({
          state,
          acceptedAttemptId,
          reasons: attempts.map((a) => (a.state === "ended" ? a.reason : a.state)),
        });
        expect(outcome(actual)).toEqual(outcome(expected));
      }),
      { numRuns: 3000 },
    );
  });

  it("keeps its promises for any events at all, conflicting ones included", () => {
    const id = fc.constantFrom("a", "b", "c", "d", "e", "f", "g", "h");
    const event: fc.Arbitrary<RolloutEvent> = fc.oneof(
      fc.record({ type: fc.constant("attempt-leased" as const), attemptId: id }),
      fc.record({ type: fc.constant("attempt-started" as const), attemptId: id }),
      fc.record({
        type: fc.constant("attempt-ended" as const),
        attemptId: id,
        reason: fc.constantFrom(...attemptEndReasons),
      }),
      fc.record({ type: fc.constant("lease-expired" as const), attemptId: id }),
      fc.constant(cancel),
      fc.constant(rejected),
    );
    fc.assert(
      fc.property(fc.array(event, { maxLength: 40 }), (events) => {
        let rollout = newRollout("r");
        for (const e of events) {
          const next = nextRolloutState(rollout, e, policy);
          if (isTerminal(rollout.state)) expect(next.rollout).toBe(rollout);
          // Twice is once.
          expect(nextRolloutState(next.rollout, e, policy).isChanged).toBe(false);
          rollout = next.rollout;
          checkInvariants(rollout);
        }
      }),
      { numRuns: 2000 },
    );
  });
});

function checkInvariants(rollout: Rollout): void {
  const open = rollout.attempts.filter((a) => a.state !== "ended");
  expect(open.length).toBe(rollout.state === "running" ? 1 : 0);
  const accepted = rollout.attempts.filter((a) => a.attemptId === rollout.acceptedAttemptId);
  for (const attempt of accepted) {
    expect(attempt.state === "ended" && policy[attempt.reason].isTrainable).toBe(true);
    expect(isTerminal(rollout.state)).toBe(true);
  }
  expect(accepted.length).toBe(rollout.acceptedAttemptId === undefined ? 0 : 1);
  // 3 evictions and 2 infrastructure errors may be re-queued, then one attempt is the last.
  expect(rollout.attempts.length).toBeLessThanOrEqual(6);
  expect(new Set(rollout.attempts.map((a) => a.attemptId)).size).toBe(rollout.attempts.length);
}
