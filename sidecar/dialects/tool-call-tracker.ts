import { createJsonProgress, type JsonProgress } from "./json-progress.ts";
import { asNumber, asRecord, asText, type JsonValue } from "./json-value.ts";
import { stringifyJson } from "./stringify-json.ts";

/** One tool call while its fragments arrive. */
export interface TrackedCall {
  readonly index: number | undefined;
  /** The engine's id; null while it has not given one. */
  id: string | null;
  /** Empty until the engine has named it. */
  name: string;
  /** Every arguments text so far, in order. */
  readonly fragments: string[];
  readonly progress: JsonProgress;
}

export interface ToolCallTracker {
  /** The calls so far, in order of their first fragment. */
  readonly calls: readonly TrackedCall[];
  /**
   * Adds `delta.tool_calls[position]` to the call that it belongs to and returns both.
   * Undefined for what is no fragment at all.
   */
  add(
    fragment: JsonValue,
    position: number,
  ): { readonly call: TrackedCall; readonly text: string } | undefined;
}

interface Fragment {
  readonly index: number | undefined;
  readonly id: string | null;
  readonly name: string;
  readonly text: string;
}

/**
 * Tells whose fragment is whose, for engines that leave out the index or the id, give two calls
 * the same index, or interleave calls.
 */
export function createToolCallTracker(): ToolCallTracker {
  const calls: TrackedCall[] = [];
  return {
    calls,
    add(value, position) {
      const fragment = readFragment(value);
      if (fragment === undefined) return undefined;
      let call = findCall(calls, fragment, position);
      if (call === undefined) {
        const progress = createJsonProgress();
        call = { index: fragment.index, id: fragment.id, name: "", fragments: [], progress };
        calls.push(call);
      }
      call.id ??= fragment.id;
      if (call.name === "") call.name = fragment.name;
      if (fragment.text !== "") {
        call.fragments.push(fragment.text);
        call.progress.push(fragment.text);
      }
      return { call, text: fragment.text };
    },
  };
}

function readFragment(value: JsonValue): Fragment | undefined {
  const fragment = asRecord(value);
  if (fragment === undefined) return undefined;
  const called = asRecord(fragment["function"]);
  const argument = called?.["arguments"];
  return {
    index: asNumber(fragment["index"]),
    id: asText(fragment["id"]) ?? null,
    name: asText(called?.["name"]) ?? "",
    // Some engines give the arguments of a whole call as an object.
    text:
      asRecord(argument) === undefined ? (asText(argument) ?? "") : (stringifyJson(argument) ?? ""),
  };
}

/** The call that a fragment continues; undefined when it starts a new one. */
function findCall(
  calls: readonly TrackedCall[],
  fragment: Fragment,
  position: number,
): TrackedCall | undefined {
  const { index, id } = fragment;
  const sameIndex = calls.findLast((call) => index === undefined || call.index === index);
  if (id !== null) {
    const sameId = calls.findLast(
      (call) => call.id === id && (index === undefined || call.index === index),
    );
    return sameId ?? (sameIndex?.id === null ? sameIndex : undefined);
  }
  if (sameIndex === undefined || fragment.name === "" || sameIndex.name === "") return sameIndex;
  // A name again: a new call, or an engine that repeats the name with every fragment.
  if (index === undefined && (position > 0 || fragment.name !== sameIndex.name)) return undefined;
  return sameIndex.progress.isComplete && fragment.text !== "" ? undefined : sameIndex;
}
