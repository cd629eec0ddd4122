import { readFileSync } from "node:fs";
import {
  asArray,
  asRecord,
  asString,
  type JsonRecord,
  type JsonValue,
} from "../../../sidecar/dialects/json-value.ts";

export interface HarnessRequest {
  readonly client: string;
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** With `tools` in the shape of their API; empty where there was no body. */
  readonly body: JsonRecord;
}

/** One recorded request by file name, e.g. `codex-tool-2`. */
export function loadHarnessRequest(name: string): HarnessRequest {
  const text = readFileSync(new URL(`./${name}.json`, import.meta.url), "utf8");
  const recorded = JSON.parse(text) as Omit<HarnessRequest, "body"> & { body?: JsonRecord };
  const { tools, ...body } = recorded.body ?? {};
  const written = asArray(tools)?.map(writeTool);
  return { ...recorded, body: written === undefined ? body : { ...body, tools: written } };
}

function writeTool(value: JsonValue): JsonValue {
  const tool = asRecord(value) ?? {};
  const name = asString(tool["name"]) ?? "";
  const kind = asString(tool["kind"]) ?? "";
  const description = `<description of ${name}>`;
  const schema = writeSchema(asRecord(tool["schema"]));
  switch (kind) {
    case "anthropic.custom":
      return { name, description, input_schema: schema };
    case "responses.function":
      return { type: "function", name, description, strict: false, parameters: schema };
    case "responses.namespace": {
      const members = (asArray(tool["tools"]) ?? []).map((member) => {
        const inner = asString(member) ?? asString(asRecord(member)?.["name"]) ?? "";
        return { type: "function", name: inner, description: "", strict: false, parameters: {} };
      });
      return { type: "namespace", name, description, tools: members };
    }
    case "chat.function":
      return { type: "function", function: { name, description, parameters: schema } };
    default: {
      const { kind: _kind, ...rest } = tool;
      return { type: kind, ...rest };
    }
  }
}

function writeSchema(schema: JsonRecord | undefined): JsonRecord {
  const properties = Object.entries(asRecord(schema?.["properties"]) ?? {});
  return {
    type: "object",
    properties: Object.fromEntries(properties.map(([key, type]) => [key, { type }])),
    ...(schema?.["required"] === undefined ? {} : { required: schema["required"] }),
  };
}
