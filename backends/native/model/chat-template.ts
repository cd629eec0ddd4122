import { Template } from "@huggingface/jinja";
import { OutriggerError } from "../../../core/outrigger-error.ts";

export interface ChatMessage {
  readonly role: string;
  readonly content?: string | null;
  readonly tool_calls?: readonly {
    readonly id?: string;
    readonly type?: string;
    readonly function: { readonly name: string; readonly arguments: unknown };
  }[];
  readonly [field: string]: unknown;
}

export interface ChatTemplate {
  readonly source: string;
  render(input: {
    readonly messages: readonly ChatMessage[];
    readonly tools?: readonly unknown[];
    readonly addGenerationPrompt: boolean;
    /** `chat_template_kwargs` of the request. */
    readonly extra?: Readonly<Record<string, unknown>>;
  }): string;
}

/** Compiles a Jinja chat template; `specialTokens` are its variables, such as `bos_token`. */
export function compileChatTemplate(
  source: string,
  specialTokens: Readonly<Record<string, string>>,
  path: string,
): ChatTemplate {
  let template: Template;
  try {
    template = new Template(source);
  } catch (cause) {
    throw new OutriggerError("chat-template-invalid", `${path}: ${(cause as Error).message}`, {
      origin: "user",
      hint: "The chat template must be Jinja as Hugging Face's tokenizers use it.",
      cause,
    });
  }
  // A template that takes arguments as text gets exactly what the model wrote, so that history
  // renders to the text that was sampled. Others expect an object to print.
  const takesTextArguments = /\barguments\s+is\s+string\b/.test(source);
  return {
    source,
    render: ({ messages, tools, addGenerationPrompt, extra }) => {
      try {
        return template.render({
          ...specialTokens,
          ...extra,
          messages: messages.map((m) => (takesTextArguments ? m : withParsedArguments(m))),
          ...(tools === undefined || tools.length === 0 ? {} : { tools }),
          add_generation_prompt: addGenerationPrompt,
        });
      } catch (cause) {
        throw new OutriggerError(
          "chat-template-refused",
          `the chat template cannot render these messages: ${(cause as Error).message}`,
          { origin: "harness", hint: "Check the roles and their order.", cause },
        );
      }
    },
  };
}

function withParsedArguments(message: ChatMessage): ChatMessage {
  if (message.tool_calls === undefined) return message;
  return {
    ...message,
    tool_calls: message.tool_calls.map((call) => ({
      ...call,
      function: { ...call.function, arguments: parseArguments(call.function.arguments) },
    })),
  };
}

function parseArguments(value: unknown): unknown {
  if (typeof value !== "string") return value;
  if (value === "") return {};
  try {
    return JSON.parse(value) as unknown;
  } catch {
    return value;
  }
}
