import { encodeEvent } from "../encode-event.ts";
import type { TrackedCall } from "../tool-call-tracker.ts";
import { uniqueId } from "../unique-id.ts";

/** What stands in the answer, in the order in which it is shown. */
export type Segment =
  | { readonly kind: "thinking" | "text"; readonly text: string }
  | { readonly kind: "tool"; readonly call: TrackedCall };

interface OpenBlock {
  readonly kind: Segment["kind"];
  readonly index: number;
  readonly call: TrackedCall | undefined;
}

export interface BlockWriter {
  /** Shows a text, or as much of a tool call as has arrived; waits its turn if it must. */
  write(segment: Segment): void;
  /** Shows everything that waits and stops the open block. */
  finish(): void;
  readonly hasToolBlock: boolean;
  readonly anomalies: readonly string[];
}

/**
 * Content blocks of a streamed message: exactly one is open at any time, indexes are 0, 1, 2, …
 * without gaps. While a tool call's JSON is incomplete its block stays open and whatever else
 * arrives waits in order, so that no byte of its arguments is lost or lands in another block.
 */
export function createBlockWriter(settings: {
  readonly emit: (events: string) => void;
  readonly newId: (prefix: string) => string;
  readonly signature: string;
}): BlockWriter {
  const { emit } = settings;
  const waiting: Segment[] = [];
  /** How many fragments of a started call were shown. */
  const shown = new Map<TrackedCall, number>();
  const takenIds = new Set<string>();
  const anomalies: string[] = [];
  let open: OpenBlock | undefined;
  let nextIndex = 0;

  function delta(value: { readonly type: string; readonly [key: string]: string }): void {
    emit(encodeEvent({ type: "content_block_delta", index: open?.index ?? 0, delta: value }));
  }

  function stop(): void {
    if (open === undefined) return;
    if (open.kind === "thinking") delta({ type: "signature_delta", signature: settings.signature });
    emit(encodeEvent({ type: "content_block_stop", index: open.index }));
    open = undefined;
  }

  function start(kind: Segment["kind"], block: { readonly [key: string]: string | object }): void {
    stop();
    open = { kind, index: nextIndex, call: undefined };
    nextIndex += 1;
    const content_block = block as Record<string, string>;
    emit(encodeEvent({ type: "content_block_start", index: open.index, content_block }));
  }

  function showText(kind: "thinking" | "text", text: string): void {
    if (open?.kind !== kind) {
      const isText = kind === "text";
      start(kind, isText ? { type: kind, text: "" } : { type: kind, thinking: "", signature: "" });
    }
    delta(
      kind === "text" ? { type: "text_delta", text } : { type: "thinking_delta", thinking: text },
    );
  }

  function showCall(call: TrackedCall): void {
    if (!shown.has(call)) {
      const id = uniqueId(call.id, takenIds, () => settings.newId("toolu_"));
      start("tool", { type: "tool_use", id, name: call.name, input: {} });
      open = { kind: "tool", index: nextIndex - 1, call };
      shown.set(call, 0);
    }
    for (const text of call.fragments.slice(shown.get(call))) {
      delta({ type: "input_json_delta", partial_json: text });
    }
    shown.set(call, call.fragments.length);
  }

  const isHeld = () => open?.call !== undefined && !open.call.progress.isComplete;

  function show(segment: Segment): void {
    if (segment.kind === "tool") showCall(segment.call);
    else showText(segment.kind, segment.text);
  }

  function showWaiting(): void {
    while (!isHeld()) {
      const segment = waiting.shift();
      if (segment === undefined) return;
      show(segment);
    }
  }

  function write(segment: Segment): void {
    const call = segment.kind === "tool" ? segment.call : undefined;
    if (call !== undefined && call === open?.call) {
      showCall(call);
      showWaiting();
    } else if (call !== undefined && shown.has(call)) {
      // The block is stopped, its JSON was whole: nothing that could still belong to it.
      anomalies.push("tool-arguments-after-end");
    } else if (isHeld()) {
      const isQueued = waiting.some((other) => other.kind === "tool" && other.call === call);
      if (call === undefined || !isQueued) waiting.push(segment);
    } else show(segment);
  }

  return {
    write,
    finish() {
      for (const segment of waiting.splice(0)) show(segment);
      stop();
    },
    get hasToolBlock() {
      return shown.size > 0;
    },
    anomalies,
  };
}
