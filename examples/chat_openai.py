"""OpenAI's client for Python against plainsong: a stream, a schema, an answer again by its seed.

pip install openai; python3 examples/chat_openai.py [URL]        (first, in another terminal: sh run.sh)
"""
import json
import os
import sys

from openai import BadRequestError, OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
client = OpenAI(base_url=url + "/v1", api_key=os.environ.get("PLAINSONG_KEY", "none"))
model = "plainsong"  # any name, unless the server has --strict-model


def user(content):
    return [{"role": "user", "content": content}]


stream = client.chat.completions.create(
    model=model, messages=user("Tell me a tale about a fox and a lantern."), temperature=0, max_tokens=60, stream=True)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

schema = {"type": "object", "required": ["name", "colour"], "additionalProperties": False,
          "properties": {"name": {"type": "string"}, "colour": {"enum": ["red", "teal", "blue"]}}}
wears = client.chat.completions.create(
    model=model, messages=user("Reply as JSON with keys name and colour. Mira wears teal."), temperature=0,
    response_format={"type": "json_schema", "json_schema": {"name": "wears", "strict": True, "schema": schema}})
print(json.loads(wears.choices[0].message.content))

# What OpenAI does not have goes into extra_body.
once = client.chat.completions.create(
    model=model, messages=user("Tell me a tale."), max_tokens=20, extra_body={"top_k": 20, "min_p": 0.05})
again = client.chat.completions.create(
    model=model, messages=user("Tell me a tale."), max_tokens=20, seed=once.seed, extra_body={"top_k": 20, "min_p": 0.05})
print("equal" if once.choices[0].message.content == again.choices[0].message.content else "different")

try:
    client.chat.completions.create(model=model, messages=user("word " * 20000))
except BadRequestError as error:
    print(error.status_code, error.code, error.param)
