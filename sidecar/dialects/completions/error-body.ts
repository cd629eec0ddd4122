/** Text completions share the error object of chat completions. */
export {
  chatErrorBody as completionsErrorBody,
  encodeChatError as encodeCompletionsError,
} from "../chat/error-body.ts";
