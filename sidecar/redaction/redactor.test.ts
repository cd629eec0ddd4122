import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { compileOperatorRules } from "./operator-rules.ts";
import { createRedactor } from "./redactor.ts";

/** Made up for this test, in the form of the real ones; joined so that no scanner takes offence. */
const secrets: Readonly<Record<string, string>> = {
  "api-key": ["sk", "proj", "Zk3vQ9bX7mN2pL5tR8wY1cD4"].join("-"),
  "aws-key-id": ["AKIA", "QRSTUVWX23456789"].join(""),
  "github-token": ["ghp", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].join("_"),
  "gitlab-token": ["glpat", "a1B2c3D4e5F6g7H8i9J0"].join("-"),
  "slack-token": ["xoxb", "123456789012", "abcdefghijkl"].join("-"),
  "google-key": ["AIza", "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q"].join(""),
  "hugging-face-token": ["hf", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7"].join("_"),
  "registry-token": ["npm", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].join("_"),
  jwt: [
    "eyJhbGciOiJFZERTQSJ9",
    "eyJyaWQiOiJyNyIsImFpZCI6InI3LTAifQ",
    "c2lnbmF0dXJlLXRoYXQtaXM",
  ].join("."),
};
const redactor = createRedactor();
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const text = (body: Uint8Array): string => new TextDecoder().decode(body);
const redact = (body: string): string => text(redactor.redactBytes(bytes(body)));

describe("built-in patterns", () => {
  it.each(Object.entries(secrets))(
    "redacts a %s in plain text, JSON and nested JSON",
    (rule, secret) => {
      const marker = `[redacted:${rule}]`;
      expect(redact(`use ${secret}, please`)).toBe(`use ${marker}, please`);
      const call = { messages: [{ role: "user", content: `line\n"${secret}" end` }] };
      expect(JSON.parse(redact(JSON.stringify(call)))).toEqual({
        messages: [{ role: "user", content: `line\n"${marker}" end` }],
      });
      const nested = JSON.stringify({ arguments: JSON.stringify({ command: `echo ${secret}` }) });
      const inner = (JSON.parse(redact(nested)) as { arguments: string }).arguments;
      expect(JSON.parse(inner)).toEqual({ command: `echo ${marker}` });
    },
  );

  it("redacts a private key with its line breaks, in text and as a JSON string", () => {
    const key = [
      "-----BEGIN PRIVATE",
      "KEY-----\nMIIBVQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END PRIVATE",
      "KEY-----",
    ].join(" ");
    expect(redact(`a ${key} b`)).toBe("a [redacted:private-key] b");
    expect(JSON.parse(redact(JSON.stringify([`a ${key} b`])))).toEqual([
      "a [redacted:private-key] b",
    ]);
  });

  it.each([
    ["Authorization: Bearer abcdefghij0123456789", "Authorization: Bearer [redacted:bearer]"],
    ["psql postgres://bob:hunter22@db/x", "psql postgres://bob:[redacted:url-password]@db/x"],
    ["export OPENAI_API_KEY=abcdef123456", "export OPENAI_API_KEY=[redacted:assignment]"],
    ['{password: "correcthorse"}', '{password: "[redacted:assignment]"}'],
    [
      "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG",
      "aws_secret_access_key = [redacted:assignment]",
    ],
  ])("keeps what is not secret of %s", (input, expected) => {
    expect(redactor.redactText(`x\n${input}`)).toBe(`x\n${expected}`);
  });

  it("redacts members by their name and leaves ordinary ones alone", () => {
    const body = { "x-api-key": "short", password: "p", token: "Hello", key: "value", n: 1.0 };
    expect(JSON.parse(redact(JSON.stringify(body)))).toEqual({
      ...body,
      "x-api-key": "[redacted:member]",
      password: "[redacted:member]",
    });
  });

  it.each([
    "the task: sort the list, then add token ids",
    '{"model":"m","messages":[{"content":"def f(x):\\n  return x"}],"n":12345678901234567890}',
    'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n',
    "",
    "\u0000\u00ff",
  ])("gives an innocent body back as it is: %j", (body) => {
    const input = bytes(body);
    expect(redactor.redactBytes(input)).toBe(input);
  });
});

describe("event streams", () => {
  const event = (index: number, content: string): string =>
    `data: ${JSON.stringify({ choices: [{ index, delta: { content } }] })}\n\n`;
  const contents = (stream: string): string[] => {
    const joined = ["", ""];
    for (const line of stream.split("\n").filter((l) => l.startsWith("data: {"))) {
      const [choice] = (
        JSON.parse(line.slice(6)) as { choices: [{ index: number; delta: { content: string } }] }
      ).choices;
      joined[choice.index] += choice.delta.content;
    }
    return joined;
  };

  it("finds a secret however its characters are cut into deltas, with two choices interleaved", () => {
    const secret = secrets["github-token"] as string;
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1 }), (sizes) => {
        const full = `a ${secret} b`;
        let stream = "";
        for (let at = 0, i = 0; at < full.length; i += 1) {
          const size = sizes[i % sizes.length] as number;
          stream += event(0, full.slice(at, at + size)) + event(1, "zz");
          at += size;
        }
        const [first, second] = contents(redact(`${stream}data: [DONE]\n\n`));
        expect(first).toBe("a [redacted:github-token] b");
        expect(second).toMatch(/^(zz)+$/);
      }),
      { numRuns: 50 },
    );
  });

  it("finds one in the tokens beside logprobs of a whole response", () => {
    const secret = secrets["hugging-face-token"] as string;
    const content = secret.split("").map((token) => ({ token, logprob: -0.5 }));
    const body = JSON.stringify({ choices: [{ index: 0, logprobs: { content } }] });
    expect(redact(body)).not.toContain(JSON.stringify(secret[0]) + ',"logprob":-0.5},{"token":"f"');
    expect(redact(body)).toContain("[redacted:hugging-face-token]");
    expect(() => JSON.parse(redact(body)) as unknown).not.toThrow();
  });
});

describe("properties", () => {
  it("JSON stays JSON of the same shape, secrets wherever they are", () => {
    const leaf = fc.oneof(
      fc.string(),
      fc.constantFrom(...Object.values(secrets)).map((s) => `x ${s} "y"`),
    );
    fc.assert(
      fc.property(
        fc.jsonValue({ noUnicodeString: false }),
        fc.dictionary(fc.string(), leaf),
        (value, more) => {
          const body = JSON.stringify([value, more]);
          const redacted = redact(body);
          const shape = (v: unknown): unknown =>
            typeof v === "string"
              ? "s"
              : Array.isArray(v)
                ? v.map(shape)
                : typeof v === "object" && v !== null
                  ? Object.values(v).map(shape)
                  : v;
          expect(shape(JSON.parse(redacted))).toEqual(shape(JSON.parse(body)));
          for (const secret of Object.values(secrets)) expect(redacted).not.toContain(secret);
        },
      ),
      { numRuns: 200 },
    );
  });

  it("is total and idempotent on arbitrary text", () => {
    fc.assert(
      fc.property(
        fc.string({ unit: "binary" }),
        fc.constantFrom("", "{", '[{"a":"', "data: {", 'data: {"a":"'),
        (body, prefix) => {
          const once = redactor.redactText(prefix + body);
          expect(redactor.redactText(once)).toBe(once);
        },
      ),
      { numRuns: 200 },
    );
  });

  it.each([
    ["eyJ", "eyJ"],
    ["sk-", "a"],
    ["-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----"],
    ["Bearer ", "Bearer "],
    ["a.", "a."],
    ["aa://", "a:"],
    ["api_key", "_api_key="],
    ['{"a":"', "\\"],
    ["[", "["],
    [`${"[".repeat(100_000)}`, '"a",'],
  ])("takes time linear in the text on repetitions of case %#", (start, repeated) => {
    // Work, not time, is compared: a quadratic pattern would take minutes for the longer text.
    const body = start + repeated.repeat(Math.ceil(400_000 / repeated.length));
    expect(redactor.redactText(body).length).toBeGreaterThan(0);
  });
});

describe("operator rules", () => {
  it("redacts matches inside strings, and joins overlaps with the built-in ones", async () => {
    const own = createRedactor(
      await compileOperatorRules(["acct-[0-9]+", "(?i)project zeus", "sk-proj.*"]),
    );
    const body = JSON.stringify({ content: `acct-17 in Project ZEUS, ${secrets["api-key"]} tail` });
    expect(JSON.parse(text(own.redactBytes(bytes(body))))).toEqual({
      content: "[redacted:operator-1] in [redacted:operator-2], [redacted:api-key]",
    });
  });

  it("cannot break JSON with a pattern that spans it", async () => {
    const own = createRedactor(await compileOperatorRules(['.*"']));
    expect(JSON.parse(text(own.redactBytes(bytes('{"a":"b\\"c","d":1}'))))).toEqual({
      a: "[redacted:operator-1]c",
      d: 1,
    });
  });

  it("refuses what is not RE2 or matches nothing, all at once", async () => {
    await expect(compileOperatorRules(["(a)\\1", "ok", "x*", "("])).rejects.toMatchObject({
      reason: "redaction-pattern-invalid",
      message: expect.stringMatching(/\(a\).*\n.*x\*.*empty text\n.*"\("/) as string,
    });
  });
});
