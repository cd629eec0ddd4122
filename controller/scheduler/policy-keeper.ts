import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainerBackend } from "../../core/trainer-backend.ts";
import type { StepStore } from "../store/step-store.ts";

/** A policy that can be gone back to. */
export interface NamedCheckpoint {
  readonly name: string;
  /** Policy version that it holds. */
  readonly version: number;
  /** Optimizer steps done when it was made. */
  readonly step: number;
  readonly location: string;
  readonly atMs: number;
}

export interface Rollback {
  readonly checkpoint: string;
  /** The version that was left, and the one that the checkpoint is published as. */
  readonly fromVersion: number;
  readonly version: number;
  readonly step: number;
  readonly atMs: number;
}

export interface PolicyHistory {
  readonly checkpoints: readonly NamedCheckpoint[];
  readonly rollbacks: readonly Rollback[];
}

export interface PolicyKeeperOptions {
  readonly backend: Pick<TrainerBackend, "checkpoint" | "rollBack">;
  readonly steps: Pick<StepStore, "fact" | "setFact">;
  readonly now: () => number;
}

/**
 * The run's checkpoints and its ways back to them, durable. A rollback is noted before the backend
 * hears of it, with the version that it gives: after a kill it is made again, and is one.
 */
export interface PolicyKeeper {
  checkpoint(step: number): Promise<NamedCheckpoint>;
  /** Gives the new version. `checkpoint-unknown` (user) for a name that this run has not made. */
  rollBack(checkpoint: string, fromVersion: number, step: number): Promise<number>;
  /** Finishes a rollback that a kill cut short; undefined when there is none. */
  finishRollback(): Promise<number | undefined>;
  history(): Promise<PolicyHistory>;
}

const checkpointsFact = "checkpoints";
const rollbacksFact = "rollbacks";
const pendingFact = "rollback-pending";

export function createPolicyKeeper({ backend, steps, now }: PolicyKeeperOptions): PolicyKeeper {
  const history = async (): Promise<PolicyHistory> => ({
    checkpoints: (await steps.fact<NamedCheckpoint[]>(checkpointsFact)) ?? [],
    rollbacks: (await steps.fact<Rollback[]>(rollbacksFact)) ?? [],
  });

  const perform = async (rollback: Rollback): Promise<number> => {
    await backend.rollBack(rollback.checkpoint, rollback.version);
    const { rollbacks } = await history();
    const isNoted = rollbacks.some(({ version }) => version === rollback.version);
    if (!isNoted) await steps.setFact(rollbacksFact, [...rollbacks, rollback]);
    await steps.setFact(pendingFact, null);
    return rollback.version;
  };

  return {
    history,
    checkpoint: async (step) => {
      const name = `step-${step}`;
      const made = { ...(await backend.checkpoint(name)), name, step, atMs: now() };
      const others = (await history()).checkpoints.filter((known) => known.name !== name);
      await steps.setFact(checkpointsFact, [...others, made]);
      return made;
    },
    rollBack: async (checkpoint, fromVersion, step) => {
      const { checkpoints } = await history();
      if (!checkpoints.some(({ name }) => name === checkpoint)) {
        throw unknownCheckpoint(checkpoint, checkpoints);
      }
      const version = fromVersion + 1;
      const rollback = { checkpoint, fromVersion, version, step, atMs: now() };
      await steps.setFact(pendingFact, rollback);
      return perform(rollback);
    },
    finishRollback: async () => {
      const pending = await steps.fact<Rollback | null>(pendingFact);
      return pending === undefined || pending === null ? undefined : perform(pending);
    },
  };
}

function unknownCheckpoint(name: string, known: readonly NamedCheckpoint[]): OutriggerError {
  const names = known.map((one) => one.name).join(", ");
  return new OutriggerError("checkpoint-unknown", `this run has no checkpoint ${name}`, {
    origin: "user",
    hint:
      names === ""
        ? "retention.checkpointEverySteps makes some."
        : `It has ${names}; see \`outrigger policy list\`.`,
  });
}
