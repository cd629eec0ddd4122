import { readFileSync } from "node:fs";
import { OutriggerError } from "../core/outrigger-error.ts";

export interface ControllerAddress {
  readonly url: string;
  /** An administrator's. */
  readonly token: string;
}

interface ErrorBody {
  readonly error?: { readonly reason: string; readonly message: string; readonly hint?: string };
}

/** The address that `--url` and `--token-file` give. */
export function controllerAt(url: string, tokenFile: string | undefined): ControllerAddress {
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new OutriggerError("url-invalid", `--url ${url} is not the URL of an HTTP API`, {
      origin: "user",
      hint: "It looks like http://127.0.0.1:8791; a controller prints it as apiUrl when it starts.",
    });
  }
  return { url, token: tokenFile === undefined ? "" : readFileSync(tokenFile, "utf8").trim() };
}

/**
 * Asks the HTTP API of a controller; POSTs where there is a body.
 *
 * @throws OutriggerError `controller-unreachable`, `not-a-controller`, or the controller's own reason
 */
export async function askController<T>(
  { url, token }: ControllerAddress,
  path: string,
  body?: unknown,
): Promise<T> {
  let response: Response;
  try {
    response = await fetch(new URL(path, url), {
      method: body === undefined ? "GET" : "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  } catch (cause) {
    const why = ((cause as Error).cause as Error | undefined)?.message ?? (cause as Error).message;
    throw new OutriggerError("controller-unreachable", `no controller answers at ${url}: ${why}`, {
      origin: "user",
      hint: "It must be running; a run that has stopped goes on with --resume, and its directory can be read with --run.",
      cause,
    });
  }
  const answer = (await response.json().catch(() => undefined)) as (T & ErrorBody) | undefined;
  if (answer === undefined || answer === null) {
    const what = `${url} answered ${response.status} and no JSON`;
    throw new OutriggerError("not-a-controller", what, {
      origin: "user",
      hint: "Is it the HTTP API of a controller (apiUrl), not its gRPC address or a sidecar?",
    });
  }
  if (response.ok) return answer;
  const { error } = answer;
  throw new OutriggerError(
    error?.reason ?? "request-failed",
    error?.message ?? `${url} answered ${response.status}`,
    { origin: "user", ...(error?.hint !== undefined && { hint: error.hint }) },
  );
}
