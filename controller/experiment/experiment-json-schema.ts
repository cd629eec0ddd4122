import { z } from "zod";
import { experimentSchema } from "./experiment-schema.ts";

/**
 * JSON Schema (2020-12) of the experiment file as people write it, for editors. Kept in
 * `schema/experiment.schema.json`; `npm run generate` renews it.
 */
export function experimentJsonSchema(): string {
  const schema = z.toJSONSchema(experimentSchema, { io: "input", unrepresentable: "any" });
  return `${JSON.stringify({ title: "Outrigger experiment", ...schema }, null, 2)}\n`;
}
