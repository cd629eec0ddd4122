/** What a request shows of its conversation, the same for every dialect. */
export interface ConversationView {
  readonly systemText: string;
  readonly roles: readonly string[];
  readonly firstUserText: string;
  readonly toolCount: number;
  readonly maxTokens: number | undefined;
}

type Fields = Readonly<Record<string, unknown>>;

/** Reads chat, Messages and Responses requests alike; total over anything. */
export function readConversation(body: unknown): ConversationView {
  const request = fields(body);
  const messages = list(request["messages"] ?? request["input"]).map(fields);
  const role = (message: Fields) => stringOf(message["role"]);
  const system = messages.filter((message) => /^(system|developer)$/.test(role(message)));
  const texts = [
    request["system"],
    request["instructions"],
    ...system.map(({ content }) => content),
  ];
  const firstUser = messages.find((message) => role(message) === "user");
  const maxTokens =
    request["max_tokens"] ?? request["max_completion_tokens"] ?? request["max_output_tokens"];
  return {
    systemText: texts.map(textOf).filter(Boolean).join("\n"),
    roles: messages.map(role),
    firstUserText: textOf(firstUser?.["content"]),
    toolCount: list(request["tools"]).length,
    maxTokens: typeof maxTokens === "number" ? maxTokens : undefined,
  };
}

/** Text of a string or of parts. */
export function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  return list(content)
    .map((part) => fields(part)["text"])
    .filter((text) => typeof text === "string")
    .join("\n");
}

export function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Fields)
    : {};
}

export function stringOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}
