import { z } from "zod";
import { OutriggerError } from "../outrigger-error.ts";

/** About thirty years: sums of many of them are still exact enough to be times. */
export const maxDurationMs = 1e12;

const durationMs = z.number().nonnegative().max(maxDurationMs);
const positiveInt = z.int().positive();

const workloadSchema = z.strictObject({
  format: z.literal("rl-schedule-workload/1"),
  name: z.string(),
  engine: z.strictObject({ slots: positiveInt }),
  trainer: z.strictObject({ stepMs: durationMs, publishMs: durationMs }),
  batch: z.strictObject({ groupsPerStep: positiveInt, groupSize: positiveInt }),
  steps: positiveInt,
  groups: z
    .array(
      z.strictObject({
        groupId: z.string().min(1),
        rollouts: z
          .array(
            z.strictObject({
              rolloutId: z.string().min(1),
              turns: z.array(z.strictObject({ callMs: durationMs, toolMs: durationMs })).min(1),
            }),
          )
          .min(1),
      }),
    )
    .min(1),
});

/**
 * What a schedule is simulated on. A call needs a free slot and an open gate; tool time needs
 * neither; an update takes `stepMs`, then `publishMs` with the gate shut. Groups are taken in
 * order; those beyond `steps · groupsPerStep` are spares for dropped ones.
 */
export type Workload = z.infer<typeof workloadSchema>;
export type WorkloadGroup = Workload["groups"][number];
export type WorkloadRollout = WorkloadGroup["rollouts"][number];

/** @throws OutriggerError `bad-workload` (user) that lists every problem with its path */
export function parseWorkload(value: unknown): Workload {
  const parsed = workloadSchema.safeParse(value);
  if (!parsed.success) throw badWorkload(z.prettifyError(parsed.error));
  const problem = findProblem(parsed.data);
  if (problem !== undefined) throw badWorkload(problem);
  return parsed.data;
}

function findProblem({ groups, batch }: Workload): string | undefined {
  const seen = new Set<string>();
  for (const [index, group] of groups.entries()) {
    if (group.rollouts.length !== batch.groupSize) {
      return `groups[${index}] has ${group.rollouts.length} rollouts, batch.groupSize is ${batch.groupSize}`;
    }
    for (const id of [`group ${group.groupId}`, ...group.rollouts.map((r) => r.rolloutId)]) {
      if (seen.has(id)) return `groups[${index}]: the id "${id}" occurs twice`;
      seen.add(id);
    }
  }
  return undefined;
}

function badWorkload(what: string): OutriggerError {
  return new OutriggerError("bad-workload", `workload: ${what}`, {
    origin: "user",
    hint: "`outrigger simulate generate` writes a valid one; see docs/scheduling.md.",
  });
}
