import { expect, it } from "vitest";
import { decideUnload } from "./decide-unload.ts";
import { busyAdaptersOf } from "./vllm-engine.ts";

const loaded = ["p-1", "p-2", "p-3", "p-4", "p-5"];
const needed = ["p-5", "p-4"];

it.each([
  { busy: new Set<string>(), unloads: ["p-1", "p-2", "p-3"] },
  { busy: new Set(["p-2"]), unloads: ["p-1", "p-3"] },
  { busy: new Set(loaded), unloads: [] },
  { busy: undefined, unloads: ["p-1"] },
])("unloads what no call runs with, and keeps some where that is not known: $busy", (one) => {
  expect(decideUnload({ loaded, needed, busy: one.busy })).toEqual(one.unloads);
});

it("reads the running and waiting adapters from the newest line of vLLM's metrics", () => {
  const metrics = `# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="p-1",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="p-2,p-3",waiting_lora_adapters="p-4"} 1.70001e+09
vllm:num_requests_running{model_name="base"} 3.0`;
  expect(busyAdaptersOf(metrics)).toEqual(new Set(["p-2", "p-3", "p-4"]));
  const idle = 'vllm:lora_requests_info{running_lora_adapters="",waiting_lora_adapters=""} 5';
  expect(busyAdaptersOf(idle)).toEqual(new Set());
  expect(busyAdaptersOf("vllm:num_requests_running 0")).toBeUndefined();
});
