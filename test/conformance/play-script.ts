import type { EngineRequest, EngineScript } from "./scripted-engine.ts";

/** What a script would write in answer to a request body, without a network: its body bytes. */
export async function playScript(
  script: EngineScript,
  body: Buffer,
  url = "/v1/chat/completions",
): Promise<Buffer> {
  const never = new Promise<never>(() => {});
  const request: EngineRequest = {
    index: 0,
    method: "POST",
    url,
    headers: {},
    rawHeaders: [],
    body,
    json: JSON.parse(body.toString()) as EngineRequest["json"],
    arrivedAtMs: 0,
    aborted: never,
    finished: never,
  };
  const parts: Buffer[] = [];
  for await (const step of await script(request)) {
    if ("write" in step) parts.push(Buffer.from(step.write));
  }
  return Buffer.concat(parts);
}
