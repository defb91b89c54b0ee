#!/bin/sh
# The HTTP API by curl, a request for each endpoint. First, in another terminal: sh run.sh
#   sh examples/curl.sh [URL [KEY]]        URL: http://127.0.0.1:8080
set -eu
url=${1:-http://127.0.0.1:8080}
key=${2:-none} # any will do unless the server was started with --api-key-file
ask() { # PATH BODY
    echo "== POST $1" >&2
    curl -sS --fail-with-body -N "$url$1" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' -d "$2"
    echo
}
get() { # PATH
    echo "== GET $1" >&2
    curl -sS --fail-with-body "$url$1" -H "Authorization: Bearer $key"
    echo
}

ask /v1/chat/completions '{"messages": [{"role": "user", "content": "What is 348 + 275?"}], "temperature": 0}'
ask /v1/chat/completions '{"messages": [{"role": "user", "content": "What is 5 + 6?"}], "temperature": 0, "stream": true,
    "stream_options": {"include_usage": true}}'
ask /v1/chat/completions '{"messages": [{"role": "user", "content": "Reply as JSON with keys name and colour. Mira wears teal."}],
    "temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "wears", "strict": true, "schema": {
    "type": "object", "required": ["name", "colour"], "additionalProperties": false, "properties": {
    "name": {"type": "string"}, "colour": {"enum": ["red", "teal", "blue"]}}}}}}'
ask /v1/chat/completions '{"messages": [{"role": "user", "content": "How is the weather in Oslo?"}], "temperature": 0,
    "tool_choice": "required", "parallel_tool_calls": false, "tools": [{"type": "function", "function": {"name": "weather",
    "parameters": {"type": "object", "required": ["city"], "additionalProperties": false,
    "properties": {"city": {"type": "string", "maxLength": 20}}}}}]}'
ask /v1/completions '{"prompt": ["Once upon a time", "In the village of"], "max_tokens": 12, "temperature": 0.8, "seed": 7}'
ask /v1/responses '{"input": "What is 5 + 6?", "temperature": 0}'
ask /v1/messages '{"max_tokens": 32, "temperature": 0, "messages": [{"role": "user", "content": "What is 5 + 6?"}]}'
ask /v1/messages/count_tokens '{"messages": [{"role": "user", "content": "What is 5 + 6?"}]}'
ask /tokenize '{"content": "a lantern", "with_pieces": true}'
ask /detokenize '{"tokens": [1, 2, 300]}'
ask /apply-template '{"messages": [{"role": "user", "content": "What is 5 + 6?"}]}'
get /v1/models
get /slots
get /health
get /metrics | grep '^plainsong_generated_tokens_total'
