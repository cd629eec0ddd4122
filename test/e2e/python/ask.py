"""Asks one base URL through the official Python clients and prints what came back as JSON.

usage: ask.py openai|responses|anthropic BASE_URL

Each client asks for a whole answer and a streamed one, breaks a stream off after its first text
(`abort` in the last message keeps the service from ending it) and is refused (`refuse`).
"""

import json
import sys

client_name, base_url = sys.argv[1:3]
parameters = {"type": "object", "properties": {"city": {"type": "string"}}}


def said(text):
    return [{"role": "user", "content": text}]


def refusal(ask):
    try:
        ask()
    except Exception as error:
        return {"name": type(error).__name__, "status": getattr(error, "status_code", None)}
    return None


def ask_openai():
    import openai

    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="sk-x", max_retries=0)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    request = {"model": "toy", "messages": said("hello there"), "tools": tools}
    whole = client.chat.completions.create(**request)
    chunks = [
        chunk.model_dump(exclude={"id"})
        for chunk in client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
    ]
    aborted = client.chat.completions.create(model="toy", messages=said("abort"), stream=True)
    seen = ""
    for chunk in aborted:
        seen += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if seen != "":
            break
    aborted.close()
    refused = refusal(
        lambda: client.chat.completions.create(model="toy", messages=said("refuse"))
    )
    return {
        "whole": whole.model_dump(exclude={"id"}),
        "chunks": chunks,
        "seen": seen,
        "refused": refused,
    }


def ask_responses():
    import openai

    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="sk-x", max_retries=0)
    tools = [{"type": "function", "name": "weather", "parameters": parameters, "strict": False}]
    request = {"model": "toy", "input": "hello there", "tools": tools}
    keep = {"status", "output", "usage", "error", "incomplete_details", "model"}
    whole = client.responses.create(**request)
    with client.responses.stream(**request) as stream:
        streamed = stream.get_final_response()
    aborted = client.responses.create(model="toy", input="abort", stream=True)
    seen = ""
    for event in aborted:
        if event.type == "response.output_text.delta":
            seen += event.delta
            break
    aborted.close()
    refused = refusal(lambda: client.responses.create(model="toy", input="refuse"))
    return {
        "whole": whole.model_dump(include=keep, warnings=False),
        "streamed": streamed.model_dump(include=keep, warnings=False),
        "seen": seen,
        "refused": refused,
    }


def ask_anthropic():
    import anthropic

    client = anthropic.Anthropic(base_url=base_url, api_key="sk-x", max_retries=0)
    tools = [{"name": "weather", "input_schema": parameters}]
    base = {"model": "toy", "max_tokens": 100}
    request = {**base, "messages": said("hello there"), "tools": tools}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    seen = ""
    with client.messages.stream(**base, messages=said("abort")) as stream:
        for seen in stream.text_stream:
            break
    refused = refusal(lambda: client.messages.create(**base, messages=said("refuse")))
    return {
        "whole": whole.model_dump(exclude={"id"}),
        "streamed": streamed.model_dump(exclude={"id"}),
        "seen": seen,
        "refused": refused,
    }


asks = {"openai": ask_openai, "responses": ask_responses, "anthropic": ask_anthropic}
print(json.dumps(asks[client_name]()))
