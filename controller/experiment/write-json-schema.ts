import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { experimentJsonSchema } from "./experiment-json-schema.ts";

writeFileSync(
  join(import.meta.dirname, "../../schema/experiment.schema.json"),
  experimentJsonSchema(),
);
