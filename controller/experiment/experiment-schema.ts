import { z } from "zod";
import { attemptEndReasons } from "../../core/rollouts/attempt-end-reason.ts";

const command = z
  .array(z.string().min(1))
  .min(1)
  .describe(
    "Program and arguments. Items that start with ./ or ../ are relative to the experiment file; the program `node` is the Node that runs Outrigger.",
  );
const timeoutMs = (byDefault: number) => z.int().min(100).max(86_400_000).default(byDefault);
const count = z.int().min(1).max(1_000_000);
const relativeFile = z.string().min(1).describe("Path, relative to the experiment file.");

const taskSource = z
  .union([
    z.strictObject({ file: relativeFile }),
    z.strictObject({ command, timeoutMs: timeoutMs(60_000) }),
  ])
  .describe("JSON lines, one object a task: from a file, or from what a command prints.");

const tasks = z.strictObject({
  train: taskSource,
  heldOut: taskSource.optional().describe("Needed when anything is evaluated."),
  idField: z.string().min(1).default("id").describe("Task field with a unique id, if it is there."),
  verifierOnly: z
    .array(z.string().min(1))
    .default([])
    .describe("Task fields that only the verifier sees, such as the right answer."),
});

const variableName = z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, "not a variable name");
const variables = z.array(variableName).min(1);

const harness = z.strictObject({
  command,
  cwd: z
    .string()
    .min(1)
    .optional()
    .describe("Working directory, relative to the experiment file; default: the workspace."),
  environment: z.record(variableName, z.string()).default({}).describe("Literal variables."),
  fromTask: z
    .record(variableName, z.string().min(1))
    .default({})
    .describe("Variable to dotted path in the task; what is not text is given as JSON."),
  passEnvironment: z
    .array(variableName)
    .default([])
    .describe("Variables of Outrigger's own environment that the harness may see."),
  taskFile: z
    .string()
    .regex(/^[^/\\]+$/, "a plain file name")
    .optional()
    .describe(
      "Writes the task as JSON to this file in the workspace; its path is in OUTRIGGER_TASK_FILE.",
    ),
  variables: z
    .strictObject({
      openaiBaseUrl: variables.default(["OPENAI_BASE_URL"]),
      openaiApiKey: variables.default(["OPENAI_API_KEY"]),
      anthropicBaseUrl: variables.default(["ANTHROPIC_BASE_URL"]),
      anthropicApiKey: variables.default(["ANTHROPIC_API_KEY"]),
      model: variables.default(["OPENAI_MODEL", "ANTHROPIC_MODEL"]),
    })
    .prefault({})
    .describe("Names of the variables that point the harness at the sidecar."),
  timeoutMs: timeoutMs(600_000),
  killGraceMs: z.int().min(0).max(600_000).default(5_000).describe("From SIGTERM to SIGKILL."),
  maxOutputBytes: z.int().min(1024).max(1_073_741_824).default(1_048_576),
  concurrency: count.default(8).describe("Attempts that run at the same time."),
  mayReward: z
    .boolean()
    .default(false)
    .describe("Lets the harness post events and its own reward. Only for agents that you trust."),
});

const verifier = z.strictObject({
  command,
  mode: z
    .enum(["process", "persistent"])
    .default("process")
    .describe(
      'process: one per attempt, prints a number or {"reward": x} as its last line. persistent: one long-lived process that answers one JSON line per attempt.',
    ),
  timeoutMs: timeoutMs(60_000),
  retries: z.int().min(0).max(10).default(2).describe("Tries again after a crash or time-out."),
  environment: z.record(variableName, z.string()).default({}),
});

const reward = z.union([
  z.strictObject({ verifier }),
  z.strictObject({
    fromEvents: z
      .enum(["last", "sum", "max"])
      .describe("The reward is what was posted as `reward` events, combined this way."),
  }),
]);

const credit = z.discriminatedUnion("kind", [
  z.strictObject({ kind: z.literal("outcome") }),
  z.strictObject({ kind: z.literal("per-turn"), discount: z.number().min(0).max(1).default(1) }),
]);
const epsilon = z.number().positive().optional();
const advantages = z.discriminatedUnion("estimator", [
  z.strictObject({
    estimator: z.enum(["grpo", "trl-grpo", "dr-grpo", "rloo"]),
    epsilon,
    credit: credit.optional(),
  }),
  z.strictObject({
    estimator: z.enum([
      "reinforce-plus-plus",
      "reinforce-plus-plus-baseline",
      "trl-grpo-batch-std",
    ]),
    credit: credit.optional(),
  }),
  z.strictObject({
    estimator: z.literal("gigpo"),
    discount: z.number().min(0).max(1).optional(),
    stepWeight: z.number().nonnegative().optional(),
    normalises: z.boolean().optional(),
    epsilon,
  }),
  z.strictObject({
    estimator: z.enum([
      "verl-grpo",
      "verl-grpo-no-std",
      "verl-rloo",
      "verl-reinforce-plus-plus",
      "verl-reinforce-plus-plus-baseline",
    ]),
    epsilon,
    gamma: z.number().min(0).max(1).optional(),
  }),
]);

const weighting = z.discriminatedUnion("kind", [
  z.strictObject({
    kind: z.enum([
      "rollout-mean",
      "token-mean",
      "call-mean",
      "verl-token-mean",
      "verl-token-sum",
      "trl-bnpo",
      "trl-dapo",
      "verl-seq-mean-token-mean",
      "verl-seq-mean-token-sum",
      "trl-grpo",
      "agl-per-rollout-mean",
    ]),
  }),
  z.strictObject({
    kind: z.enum(["constant-norm", "verl-seq-mean-token-sum-norm", "trl-dr-grpo"]),
    normTokens: z.int().min(1).describe("L: usually the longest response allowed."),
  }),
]);

/** `clipLow` and `clipHigh` bound the ratio itself, as in core/trainer-backend.ts. */
const loss = z.discriminatedUnion("kind", [
  z.strictObject({
    kind: z.literal("ppo"),
    clipLow: z.number().min(0).max(1).default(0.8),
    clipHigh: z.number().min(1).default(1.2),
    dualClip: z.number().gt(1).optional(),
  }),
  z.strictObject({
    kind: z.literal("cispo"),
    clipLow: z.number().min(0).max(1).default(0),
    clipHigh: z.number().min(1).default(4),
  }),
  z.strictObject({
    kind: z.literal("gspo"),
    clipLow: z.number().min(0).max(1).default(0.9997),
    clipHigh: z.number().min(1).default(1.0004),
  }),
  z.strictObject({ kind: z.literal("importance-sampling") }),
]);

const level = z.enum(["token", "sequence"]).default("token");
const correction = z.discriminatedUnion("kind", [
  z.strictObject({ kind: z.literal("none") }),
  z.strictObject({ kind: z.literal("truncate"), level, max: z.number().positive().default(2) }),
  z.strictObject({
    kind: z.literal("mask"),
    level,
    min: z.number().nonnegative().default(0.5),
    max: z.number().positive().default(2),
  }),
]);

const algorithm = z.strictObject({
  advantages: advantages.default({ estimator: "grpo" }),
  weighting: weighting.default({ kind: "rollout-mean" }),
  dropsZeroSignalGroups: z
    .boolean()
    .default(false)
    .describe("Leave groups out of the step whose rewards are all equal."),
  includeSideCalls: z.boolean().default(false),
  maxRowTokens: z
    .int()
    .min(2)
    .optional()
    .describe("Longest training row; default: what the backend can take."),
  overLength: z.enum(["truncate", "drop-call", "drop-row"]).default("truncate"),
  loss: loss.prefault({ kind: "ppo" }),
  correction: correction.default({ kind: "none" }),
  klCoefficient: z.number().nonnegative().default(0),
  learningRate: z.number().positive().max(1).default(1e-4).describe("At its peak."),
  learningRateSchedule: z
    .strictObject({
      warmupSteps: z.int().min(0).default(0),
      decay: z.enum(["none", "linear", "cosine"]).default("none"),
      decaySteps: z
        .int()
        .min(1)
        .optional()
        .describe("How many of the run's last steps decay; default: all after the warm-up."),
      minRatio: z.number().min(0).max(1).default(0).describe("Share of the peak at the end."),
    })
    .prefault({}),
  beta1: z.number().min(0).lt(1).default(0.9),
  beta2: z.number().min(0).lt(1).default(0.95),
  epsilon: z.number().positive().default(1e-8),
  weightDecay: z.number().nonnegative().default(0),
  maxGradNorm: z.number().positive().default(1),
});

const schedule = z.strictObject({
  kind: z.enum(["sync", "collocated-async", "async"]).default("sync"),
  steps: z.int().min(0).max(1_000_000).default(20),
  groupsPerStep: count.default(8),
  groupSize: count.default(8),
  maxStalenessSteps: z.int().min(0).max(1000).default(2).describe("Not used by sync."),
  onStale: z.enum(["wait", "drop"]).default("wait"),
  tail: z
    .discriminatedUnion("kind", [
      z.strictObject({ kind: z.literal("wait") }),
      z.strictObject({
        kind: z.literal("cut"),
        minFinishedShare: z.number().min(0).max(1).default(0.75),
        graceMs: z.int().min(0).default(30_000),
      }),
    ])
    .default({ kind: "wait" })
    .describe("What is done with stragglers that hold an update up."),
  drainLimitMs: timeoutMs(120_000).describe("How long an update waits for calls in flight."),
  holdLimitMs: timeoutMs(300_000).describe("How long a call is held before it is answered 429."),
});

const samplingParameters = z.strictObject({
  temperature: z.number().min(0).max(10).optional(),
  topP: z.number().gt(0).max(1).optional(),
  topK: z.int().min(-1).optional(),
  maxTokens: z.int().min(1).optional(),
});

const sampling = z
  .strictObject({
    train: samplingParameters.default({ temperature: 1 }),
    eval: samplingParameters.default({}),
  })
  .describe("What replaces the harness's own sampling parameters, per mode.");

const backend = z.discriminatedUnion("kind", [
  z.strictObject({
    kind: z.literal("native"),
    model: relativeFile.describe("Hugging Face directory of the starting policy."),
    compute: z.string().min(1).default("auto"),
    flags: z
      .array(z.string())
      .default([])
      .describe("Further flags of `outrigger backend native`, as written on its command line."),
  }),
  z.strictObject({
    kind: z.literal("tinker"),
    model: relativeFile.describe(
      "Hugging Face directory of the policy: configuration, tokenizer, chat template. Weights only without a url.",
    ),
    url: z
      .url()
      .optional()
      .describe(
        "Tinker server, without /api/v1. Left out: one on this machine, in front of the native trainer.",
      ),
    baseModel: z
      .string()
      .min(1)
      .optional()
      .describe("The model's name on the server; needed where it has several."),
    apiKeyVariable: variableName
      .default("TINKER_API_KEY")
      .describe("Variable of Outrigger's own environment that holds the server's key."),
    loraRank: z.int().min(0).max(4096).default(32),
    maxLength: z.int().min(2).optional().describe("Longest context in tokens on the server."),
    concurrency: count.default(64).describe("Samples asked for at once."),
    engines: z
      .strictObject({
        urls: z.array(z.url()).min(1).describe("Each up to and including /v1."),
        adapterDirectory: relativeFile.describe("Shared with the engines, at the same path."),
        apiKeyVariable: variableName
          .optional()
          .describe("Variable of Outrigger's own environment that holds the engines' key."),
      })
      .optional()
      .describe(
        "vLLM engines that serve the policy as a LoRA adapter, in place of the server's own sampling. With a url.",
      ),
    compute: z.string().min(1).default("auto").describe("Without a url."),
    flags: z
      .array(z.string())
      .default([])
      .describe("Without a url: further flags of `outrigger backend tinker-server`."),
  }),
  z.strictObject({
    kind: z.literal("agl"),
    host: z.string().min(1).default("127.0.0.1").describe("Address that the trainer reaches."),
    port: z.int().min(0).max(65_535).default(8791).describe("0 takes any free one."),
    allowRemote: z
      .boolean()
      .default(false)
      .describe("Listen beyond loopback; only behind something that encrypts."),
    model: z
      .string()
      .min(1)
      .optional()
      .describe("Serves only engines that the trainer registered under this name."),
  }),
]);

const evaluation = z.strictObject({
  before: z.boolean().default(true),
  after: z.boolean().default(true),
  everySteps: count.optional(),
  count: count.default(100).describe("Held-out tasks, the first ones of the file."),
  passReward: z.number().default(1).describe("A rollout with at least this reward has passed."),
});

const rewardRule = z.union([
  z.literal("graded").transform(() => ({ kind: "graded" as const })),
  z.literal("none").transform(() => ({ kind: "none" as const })),
  z.number().transform((value) => ({ kind: "fixed" as const, value })),
  z
    .strictObject({ whenMissing: z.number() })
    .transform(({ whenMissing }) => ({ kind: "graded" as const, whenMissing })),
]);

const failureRule = z.strictObject({
  reward: rewardRule
    .optional()
    .describe(
      "graded, none, a number, or {whenMissing: x}: graded, x where the grader was silent.",
    ),
  isTrainable: z.boolean().optional(),
  isInBaseline: z.boolean().optional(),
  maxRequeues: z.int().min(0).max(1000).optional(),
  isAlarm: z.boolean().optional(),
});

const failurePolicy = z
  .partialRecord(z.enum(attemptEndReasons as [string, ...string[]]), failureRule)
  .default({})
  .describe("What each way of ending means; what is not said keeps its default.");

/** Sampler against trainer, in nats per token. */
const gapLimits = (mean: number, p99: number, kl: number) =>
  z
    .strictObject({
      mean: z.number().positive().default(mean).describe("Of |Δ logprob| over the tokens."),
      p99: z.number().positive().default(p99).describe("99th percentile of |Δ logprob|."),
      kl: z.number().positive().default(kl).describe("k3 estimate of KL(sampling ‖ policy)."),
    })
    .prefault({});

const fraction = z.number().min(0).max(1);
const limits = z
  .strictObject({
    logprobGap: z
      .strictObject({
        warn: gapLimits(1e-2, 1e-1, 1e-3).describe("Warns, of tokens at staleness 0 only."),
        stop: gapLimits(1, 5, 1).describe("Stops, at any staleness."),
      })
      .prefault({})
      .describe("How far the sampler's logprobs may be from the trainer's, nats per token."),
    maxIncompleteFraction: fraction.default(0.1),
    maxNeverCalledFraction: fraction.default(0.5),
    maxMissingRewardFraction: fraction.default(0.5),
    maxInfraErrorFraction: fraction.default(0.5),
    capture: z
      .strictObject({
        maxIncomplete: fraction.optional().describe("Incomplete samplings, of all samplings."),
        maxZeroCapture: fraction
          .default(0.5)
          .describe("Rollouts without a trainable token, of all rollouts."),
        maxLostTokens: fraction
          .optional()
          .describe("Tokens given up as incomplete, too long or drifted, of all sampled."),
        maxBreaks: fraction
          .optional()
          .describe("Turns whose prompt does not go on exactly from the turn before."),
        minLogprobCoverage: fraction.optional().describe("Sampled tokens with a usable logprob."),
        minRewardCoverage: fraction.optional().describe("Rollouts with a known reward."),
      })
      .prefault({})
      .describe("What the capture report of a step must keep."),
  })
  .describe("Per step. Above one of these the run stops and says which (`warn` only warns).");

const capture = z.strictObject({
  text: z.boolean().default(false).describe("Keep request and response text, redacted."),
  redact: z.array(z.string()).default([]).describe("Further patterns to redact."),
});

const retention = z.strictObject({
  workspaces: z.enum(["none", "failed", "all"]).default("failed"),
  checkpointEverySteps: count.optional().describe("Default: only the last step."),
  reportSamples: z.int().min(0).max(1000).default(6),
});

/** The experiment file, as a person writes it. */
export const experimentSchema = z.strictObject({
  $schema: z.string().optional(),
  name: z
    .string()
    .regex(/^[a-z0-9][a-z0-9-]{0,62}$/, "lower-case letters, digits and dashes, at most 63"),
  seed: z.int().min(0).max(4_294_967_295).default(0),
  tasks,
  harness,
  reward,
  algorithm: algorithm.prefault({}),
  schedule: schedule.prefault({}),
  sampling: sampling.prefault({}),
  backend,
  evaluation: evaluation.prefault({}),
  failurePolicy,
  limits: limits.prefault({}),
  capture: capture.prefault({}),
  retention: retention.prefault({}),
});

export type ExperimentFile = z.output<typeof experimentSchema>;
