"""A stream with Python's standard library alone: text as it comes, then the usage.

python3 examples/stream.py [URL]        (first, in another terminal: sh run.sh)
"""
import json
import os
import sys
import urllib.request

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
body = {"messages": [{"role": "user", "content": "Tell me a tale about a fox and a lantern."}], "temperature": 0,
        "max_tokens": 60, "stream": True, "stream_options": {"include_usage": True}}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("PLAINSONG_KEY", "none")}
request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as answer:
    for line in answer:
        data = line.decode().removeprefix("data: ").strip()
        if not line.startswith(b"data: ") or data == "[DONE]":
            continue  # a ping, an empty line, or the end
        event = json.loads(data)
        if "error" in event:
            sys.exit(event["error"]["message"])
        for choice in event["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
        if event.get("usage"):
            print("\n--", event["usage"]["completion_tokens"], "tokens")
