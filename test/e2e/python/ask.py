"""Asks one base URL through the official Python clients and prints what came back as JSON.

usage: ask.py openai|anthropic BASE_URL
"""

import json
import sys

client_name, base_url = sys.argv[1:3]
messages = [{"role": "user", "content": "hello there"}]
parameters = {"type": "object", "properties": {"city": {"type": "string"}}}


def ask_openai():
    import openai

    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="sk-x", max_retries=0)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    whole = client.chat.completions.create(model="toy", messages=messages, tools=tools)
    chunks = [
        chunk.model_dump(exclude={"id"})
        for chunk in client.chat.completions.create(
            model="toy",
            messages=messages,
            tools=tools,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    aborted = client.chat.completions.create(model="toy", messages=messages, stream=True)
    next(iter(aborted))
    aborted.close()
    return {"whole": whole.model_dump(exclude={"id"}), "chunks": chunks}


def ask_anthropic():
    import anthropic

    client = anthropic.Anthropic(base_url=base_url, api_key="sk-x", max_retries=0)
    tools = [{"name": "weather", "input_schema": parameters}]
    request = {"model": "toy", "max_tokens": 100, "messages": messages, "tools": tools}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    keep = {"id": True, "content": {"__all__": {"id"}}}
    return {"whole": whole.model_dump(exclude=keep), "streamed": streamed.model_dump(exclude=keep)}


print(json.dumps(ask_openai() if client_name == "openai" else ask_anthropic()))
