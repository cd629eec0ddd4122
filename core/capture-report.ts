/** Why a break between two turns happened, judged from tokens and, where a decoder is given, text. */
export type BreakKind = "template" | "re-tokenisation" | "history-edited";

/** Why sampled tokens are not trained. */
export type LossReason =
  | "incomplete"
  | "undelivered"
  | "superseded"
  | "side-call"
  | "over-length"
  | "drift";

/**
 * What capture and assembly made of the calls of one attempt, one rollout or a whole run.
 *
 * Identities, kept by every sum: `tokens.sampled = tokens.trained + Σ tokens.lost`;
 * `calls.records = calls.duplicates + calls.replays + calls.samplings`.
 */
export interface CaptureReport {
  readonly attempts: number;
  readonly calls: {
    /** Records read, doubled ones included. */
    readonly records: number;
    /** Records with a call id already seen in the attempt. */
    readonly duplicates: number;
    /** Records that show an answer again which another record already holds. */
    readonly replays: number;
    /** Distinct choices that an engine sampled. */
    readonly samplings: number;
    /** Samplings whose last byte reached the harness, by the record or by proof. */
    readonly delivered: number;
    /** Of those, recorded as undelivered or superseded, but a later prompt goes on from them. */
    readonly proven: number;
    readonly undelivered: number;
    readonly superseded: number;
    readonly sideCalls: number;
    /** Complete, but the response has no token. */
    readonly empty: number;
    /** Whole ids that may be context but not be trained (logprobs missing or unusable). */
    readonly masked: number;
    /** Samplings with at least one trained token. */
    readonly trained: number;
    /** Samplings that cannot be trained, by reason; the masked ones are among them. */
    readonly incomplete: Readonly<Record<string, number>>;
  };
  readonly tokens: {
    /** Response ids of all samplings, as far as the ids are known. */
    readonly sampled: number;
    /** Of those, the ones with a usable logprob. */
    readonly withLogprobs: number;
    readonly trained: number;
    readonly lost: Readonly<Record<LossReason, number>>;
    /** Length of all rows together. */
    readonly rows: number;
  };
  readonly rows: number;
  /** Trained calls whose prompt extends no other trained call. */
  readonly conversations: number;
  /** Trained calls that share a row with the call they go on from. */
  readonly merged: number;
  /** Rows beyond the first of a conversation. */
  readonly branches: number;
  readonly breaks: Readonly<Record<BreakKind, number>>;
  /** Drifted responses absorbed into the next turn's row. */
  readonly absorbedDrifts: number;
  /** Responses that a length limit cut or left out; `prompt`: no room even for the first token. */
  readonly overLength: {
    readonly prompt: number;
    readonly response: number;
    readonly rows: number;
  };
}

/** The capture report of one rollout. */
export interface RolloutCapture {
  readonly rolloutId: string;
  /** The attempts whose calls were assembled, in order of id. */
  readonly attemptIds: readonly string[];
  /** No token of the rollout can be trained. */
  readonly isZeroCapture: boolean;
  /** Whether a reward is known; null where the caller did not say. */
  readonly hasReward: boolean | null;
  readonly report: CaptureReport;
}

/** The capture report of a run: sums, coverages and the rollouts one by one. */
export interface RunCapture {
  readonly rollouts: readonly RolloutCapture[];
  readonly zeroCapture: number;
  /** Share of rollouts with a known reward; null where the caller did not say. */
  readonly rewardCoverage: number | null;
  /** Share of sampled tokens that have a usable logprob; null where nothing was sampled. */
  readonly logprobCoverage: number | null;
  readonly total: CaptureReport;
}

export function emptyCaptureReport(): CaptureReport {
  return {
    attempts: 0,
    calls: {
      records: 0,
      duplicates: 0,
      replays: 0,
      samplings: 0,
      delivered: 0,
      proven: 0,
      undelivered: 0,
      superseded: 0,
      sideCalls: 0,
      empty: 0,
      masked: 0,
      trained: 0,
      incomplete: {},
    },
    tokens: {
      sampled: 0,
      withLogprobs: 0,
      trained: 0,
      lost: {
        incomplete: 0,
        undelivered: 0,
        superseded: 0,
        "side-call": 0,
        "over-length": 0,
        drift: 0,
      },
      rows: 0,
    },
    rows: 0,
    conversations: 0,
    merged: 0,
    branches: 0,
    breaks: { template: 0, "re-tokenisation": 0, "history-edited": 0 },
    absorbedDrifts: 0,
    overLength: { prompt: 0, response: 0, rows: 0 },
  };
}

/** Adds reports field by field; counts by reason are joined. */
export function sumCaptureReports(reports: Iterable<CaptureReport>): CaptureReport {
  let total = emptyCaptureReport();
  for (const report of reports) total = addTrees(total, report);
  return total;
}

function addTrees<T extends object>(left: T, right: T): T {
  const sum: Record<string, unknown> = Object.fromEntries(Object.entries(left));
  for (const [key, value] of Object.entries(right)) {
    const before = sum[key];
    if (typeof value === "number") sum[key] = (typeof before === "number" ? before : 0) + value;
    else sum[key] = addTrees((before ?? {}) as object, value as object);
  }
  return sum as T;
}

/** Sums the rollouts' reports and derives the coverages. */
export function buildRunCapture(rollouts: readonly RolloutCapture[]): RunCapture {
  const total = sumCaptureReports(rollouts.map((rollout) => rollout.report));
  const judged = rollouts.filter((rollout) => rollout.hasReward !== null);
  const { sampled, withLogprobs } = total.tokens;
  return {
    rollouts,
    zeroCapture: rollouts.filter((rollout) => rollout.isZeroCapture).length,
    rewardCoverage:
      judged.length === 0
        ? null
        : judged.filter((rollout) => rollout.hasReward).length / judged.length,
    logprobCoverage: sampled === 0 ? null : withLogprobs / sampled,
    total,
  };
}
