/** Request headers with lower-case names, as Node gives them. */
export type RequestHeaders = Readonly<Record<string, string | readonly string[] | undefined>>;

export type HarnessName =
  | "codex"
  | "claude-code"
  | "opencode"
  | "qwen-code"
  | "mini-swe-agent"
  | "openhands";

/** Where a harness is to send its model calls. */
export interface HarnessTarget {
  /** The sidecar's address without `/v1`, a path prefix such as `/r/<token>` included. */
  readonly baseUrl: string;
  /** The rollout's token, or anything where the base URL or the sidecar's binding says whose. */
  readonly apiKey: string;
  readonly model: string;
}

/** How to start a harness so that it calls the target: merge these into its command. */
export interface HarnessSetup {
  readonly env: Readonly<Record<string, string>>;
  /** Arguments after the program's name, e.g. `["-c", "model_provider=outrigger"]`. */
  readonly args: readonly string[];
  /** Files to write before the start; `~` is the harness's home directory. */
  readonly files: readonly { readonly path: string; readonly content: string }[];
}

/** One call of a harness, for `sideCallClass`. `body` is the parsed request as it was sent. */
export interface HarnessCall {
  readonly headers: RequestHeaders;
  readonly body: unknown;
}

/**
 * What is special about one harness. All of it is pure; nothing here changes a request: what the
 * engine must not see is left out by the dialect's translation.
 */
export interface HarnessAdapter {
  readonly name: HarnessName;
  /** Whether a request with these headers is this harness's. */
  recognizes(headers: RequestHeaders): boolean;
  /** The harness's own id of its session; undefined where it sends none. */
  sessionId(headers: RequestHeaders): string | undefined;
  /**
   * The kind of a call that is no turn of the task (`title`, `memory`, `probe`); undefined for a
   * turn, subagents and summaries that the harness goes on from included. In doubt, a turn.
   */
  sideCallClass(call: HarnessCall): string | undefined;
  setUp(target: HarnessTarget): HarnessSetup;
}

/** The first value of a header; undefined where it is absent or empty. */
export function headerValue(headers: RequestHeaders, name: string): string | undefined {
  const value = headers[name];
  const first = typeof value === "string" ? value : value?.[0];
  return first === "" ? undefined : first;
}
