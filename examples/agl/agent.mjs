// An agent for Agent Lightning, as a command: one question, one answer, its own reward.
// It gets AGL_OPENAI_BASE_URL, AGL_EVENT_URL and AGL_KEY, and what the trainer's env_map names.
const { AGL_OPENAI_BASE_URL, AGL_EVENT_URL, AGL_KEY, QUESTION = "1+1", ANSWER = "2" } = process.env;
const headers = { authorization: `Bearer ${AGL_KEY}`, "content-type": "application/json" };

async function post(url, body) {
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`);
  return response.json();
}

const messages = [{ role: "user", content: `${QUESTION} Answer with the number only.` }];
const completion = await post(`${AGL_OPENAI_BASE_URL}/chat/completions`, {
  messages,
  max_tokens: 32,
});
const text = completion.choices[0].message.content ?? "";
await post(AGL_EVENT_URL, {
  event_type: "reward",
  data: { value: text.includes(ANSWER) ? 1 : 0, source: "agent" },
});
