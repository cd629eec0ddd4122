import type { Logger } from "../../runtime/log.ts";
import type { PolicyModel } from "../native/model/load-model.ts";
import { openPolicyServer, type PolicyServer } from "../native/serving/policy-server.ts";
import { type AsampleEngineOptions, createAsampleEngine } from "./asample-engine.ts";

export interface PolicyProxyOptions extends AsampleEngineOptions {
  /** Tokenizer and chat template of the policy. */
  readonly model: PolicyModel;
  readonly modelName: string;
  readonly host: string;
  readonly port: number;
  readonly log: Logger;
}

/**
 * The OpenAI endpoint of a policy whose server has none: the native server's routes, chat template
 * and tool calls, over the server's sample call. Ids go in and come out as they are; a streamed
 * response comes at its end, all at once.
 */
export function openPolicyProxy(options: PolicyProxyOptions): Promise<PolicyServer> {
  const { model, modelName, host, port, log } = options;
  const engine = createAsampleEngine(options);
  return openPolicyServer({ engine, model, modelName, host, port, log });
}
