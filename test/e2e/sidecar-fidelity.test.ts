import { request as httpRequest } from "node:http";
import { brotliCompressSync, deflateSync, gzipSync } from "node:zlib";
import fc from "fast-check";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { playScript } from "../conformance/play-script.ts";
import {
  type EngineScript,
  type ScriptedEngine,
  startScriptedEngine,
  streamSteps,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { dialectNames, dialectRequests } from "./sidecar-dialect-requests.ts";
import { comparable, startTestSidecar, type TestSidecar } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url]);
});
beforeEach(() => {
  proxied.calls.length = 0;
});
afterAll(async () => {
  await proxied.close();
  await engine.close();
});

interface Raw {
  readonly status: number;
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
}

function send(body: string, headers: string[] = [], path = "/v1/chat/completions"): Promise<Raw> {
  return new Promise((resolve, reject) => {
    const length = String(Buffer.byteLength(body));
    const all = ["host", new URL(proxied.url).host, ...headers, "content-length", length];
    const outgoing = httpRequest(
      `${proxied.url}${path}`,
      { method: "POST", headers: all as unknown as Record<string, string> },
      (response) => {
        const parts: Buffer[] = [];
        response.on("data", (part: Buffer) => parts.push(part));
        response.on("error", reject);
        response.on("end", () =>
          resolve({
            status: response.statusCode ?? 0,
            rawHeaders: response.rawHeaders,
            body: Buffer.concat(parts),
          }),
        );
      },
    );
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}

const ask = (stream: boolean): string =>
  JSON.stringify({ model: "toy", stream, messages: [{ role: "user", content: "hé 😀" }] });

describe("requests", () => {
  it("only the injected members change: order, whitespace, big integers, duplicates stay", async () => {
    engine.setScript(vllmScript());
    const body =
      '{ "seed" : 12345678901234567890,\n  "model":"toy", "messages": [ {"role":"user","content":"a\\u00e9"} ],\t"x": 1.50, "x": 1e2 }';
    await send(body);
    const sent = engine.requests.at(-1)?.body.toString() ?? "";
    for (const part of [
      '"seed" : 12345678901234567890',
      '"messages": [ {"role":"user","content":"a\\u00e9"} ]',
      '"x": 1.50, "x": 1e2',
    ]) {
      expect(sent).toContain(part);
    }
    expect(sent).toContain('"return_token_ids"');
  });

  it("query, header order and duplicates arrive; credentials and hop-by-hop do not", async () => {
    const headers = ["X-B", "1", "anthropic-beta", "a", "x-a", "2", "anthropic-beta", "b"];
    await send(
      ask(false),
      ["authorization", "Bearer sk-secret", ...headers, "connection", "x-hop", "x-hop", "9"],
      "/v1/chat/completions?beta=true&x=%20",
    );
    const request = engine.requests.at(-1);
    expect(request?.url).toBe("/v1/chat/completions?beta=true&x=%20");
    const raw = request?.rawHeaders ?? [];
    const start = raw.indexOf("X-B");
    expect(raw.slice(start, start + 8)).toEqual(headers);
    expect(raw.join("\n")).not.toContain("sk-secret");
    expect(raw).not.toContain("x-hop");
    expect(request?.headers["accept-encoding"]).toBe("identity");
  });
});

describe("answers", () => {
  it("status, headers and their duplicates, in order", async () => {
    engine.setScript(() => [
      {
        head: 200,
        headers: {
          "Content-Type": "application/json",
          "X-Request-Id": "abc",
          "x-ratelimit-remaining-tokens": "5",
        },
      },
      {
        write: '{"choices": [ {"index":0, "message":{"content":"x"},"finish_reason":"stop"} ] }\n',
      },
      { end: true },
    ]);
    const { rawHeaders, body } = await send(ask(false));
    expect(body.toString()).toBe(
      '{"choices": [ {"index":0, "message":{"content":"x"},"finish_reason":"stop"} ] }\n',
    );
    expect(rawHeaders.slice(0, 6)).toEqual([
      "Content-Type",
      "application/json",
      "X-Request-Id",
      "abc",
      "x-ratelimit-remaining-tokens",
      "5",
    ]);
  });

  it.each([
    ["gzip", gzipSync],
    ["deflate", deflateSync],
    ["br", brotliCompressSync],
  ])("compressed with %s all the same: decoded, captured, stripped", async (encoding, compress) => {
    for (const stream of [false, true]) {
      proxied.calls.length = 0;
      const script: EngineScript = async (request) => {
        const plain = await playScript(vllmScript(), request.body, request.url);
        const type = stream ? "text/event-stream" : "application/json";
        return [
          { head: 200, headers: { "content-type": type, "content-encoding": encoding } },
          { write: compress(plain) },
          { end: true },
        ];
      };
      engine.setScript(script);
      const { body, rawHeaders } = await send(ask(stream));
      expect(rawHeaders.join("\n").toLowerCase()).not.toContain("content-encoding");
      expect(body.toString()).not.toContain("token_ids");
      expect(body.toString()).toContain(stream ? "[DONE]" : '"choices"');
      const [call] = await proxied.recorded(1);
      expect(call?.choices[0]?.complete).toBe(true);
    }
  });

  it("a stream gives the same bytes and the same record however it is cut", async () => {
    const expected = new Map<string, [string, unknown]>();
    const requests = dialectNames.map((dialect) => {
      const { path, body } = dialectRequests[dialect];
      return [path, JSON.stringify({ ...body, stream: true })] as const;
    });
    const answer = {
      reasoning: "hm 😀",
      content: "été",
      toolCalls: [{ id: "call_1", name: "f", arguments: '{"a": "é"}' }],
    };
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...requests),
        fc.array(fc.integer({ min: 1, max: 400 }), { minLength: 1, maxLength: 6 }),
        async ([path, body], sizes) => {
          proxied.calls.length = 0;
          engine.setScript(async (request) => {
            const plain = await playScript(
              vllmScript({ answer: () => answer }),
              request.body,
              request.url,
            );
            return streamSteps(plain, sizes);
          });
          const { body: bytes } = await send(body, [], path);
          const [call] = await proxied.recorded(1);
          if (call === undefined) throw new Error("no record");
          // Ids differ from call to call.
          const text = bytes
            .toString()
            .replaceAll(/(msg|toolu|call|resp|rs|fc)_[0-9A-Za-z]{24}/g, "$1_")
            .replaceAll(/"(created_at|completed_at)":\d+/g, '"$1":0')
            .replaceAll(/"signature":"\w+"/g, '"signature":""')
            .replaceAll(/cmpl-\d+/g, "cmpl");
          const outcome: [string, unknown] = [text, comparable(call)];
          const first = expected.get(path);
          if (first === undefined) expected.set(path, outcome);
          else expect(outcome).toEqual(first);
          expect(call.choices[0]?.complete).toBe(true);
        },
      ),
      { numRuns: 100 },
    );
  });

  it("a 5 MB event and a last event without its blank line", async () => {
    const big = "x".repeat(5_000_000);
    const lines = [
      `data: {"choices":[{"index":0,"delta":{"content":"${big}"},"finish_reason":null}]}\r\n\r\n`,
      'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    ];
    engine.setScript(() => streamSteps(lines.join(""), [65_536]));
    const { body } = await send(ask(true));
    // Not `toBe`: a difference would print both.
    expect(body.equals(Buffer.from(lines.join("")))).toBe(true);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: true });
  });
});
