import { type Agent, request as httpRequest, type IncomingMessage } from "node:http";

export interface Answer {
  readonly status: number;
  readonly headers: IncomingMessage["headers"];
  readonly rawHeaders: string[];
  readonly body: string;
  /** How the connection ended this answer. */
  readonly end: "clean" | "broken";
}

export interface PostOptions {
  /** Default: chat completions. */
  readonly path?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly agent?: Agent;
  readonly onFirstByte?: () => void;
}

/** One POST without a library that would retry, decode or hide how the connection ended. */
export function post(url: string, body: string, options: PostOptions = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = httpRequest(
      `${url}${options.path ?? "/v1/chat/completions"}`,
      {
        method: "POST",
        headers: { "content-type": "application/json", ...options.headers },
        ...(options.agent === undefined ? {} : { agent: options.agent }),
      },
      (response) => {
        const parts: Buffer[] = [];
        const settle = (end: Answer["end"]): void =>
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            rawHeaders: response.rawHeaders,
            body: Buffer.concat(parts).toString(),
            end,
          });
        response.on("data", (part: Buffer) => {
          parts.push(part);
          options.onFirstByte?.();
        });
        response.on("end", () => settle("clean"));
        response.on("error", () => settle("broken"));
      },
    );
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}
