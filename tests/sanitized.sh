#!/bin/sh
# The whole program under the sanitizers, beside the release build: what they print must be the same bytes, whatever the
# compiler, and no sanitizer may speak.
#   sh tests/sanitized.sh SANITIZED_PLAINSONG RELEASE_PLAINSONG
# Prints "ok NAME" or "not ok NAME: why".
set -u
sanitized=$1
release=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0

# case_ NAME STATUS ARGS...: both run with the input $tmp/in.
case_() {
    name=$1 want=$2
    shift 2
    "$release" "$@" <"$tmp/in" >"$tmp/expected" 2>/dev/null
    "$sanitized" "$@" <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
    status=$?
    if [ $status -ne "$want" ] || grep -qE 'Sanitizer|runtime error' "$tmp/err"; then
        echo "not ok $name: status $status"
        tail -n 40 "$tmp/err"
        failed=1
    elif ! cmp "$tmp/expected" "$tmp/out" >"$tmp/why" 2>&1; then
        echo "not ok $name: other bytes than the release build's: $(cat "$tmp/why")"
        failed=1
    else
        echo "ok $name"
    fi
}

model=models/plainsong-tiny-q4_0.gguf
: >"$tmp/in"
for kv in f16 q8_0; do
    case_ "run, greedy, kv $kv" 0 run -p "Tell me a tale about a fox and a lantern." -n 12 --kv $kv
done
case_ "run, sampled" 0 run -p "Tell me a tale about a fox and a lantern." -n 8 --temp 1 --top-k 40 --top-p 0.9 --min-p 0.01 --seed 3
case_ "run, scalar, one thread, serialized, experts apart" 0 run -p "What is 2 + 3?" --isa scalar --threads 1 --serialize --experts per-row
case_ "run, no setup cache, raw" 0 run --raw -p "Once, in the village of" -n 4 --no-setup-cache
printf 'Remember this: key 7421 is plum. What is key 7421?\nNow key 7421 is melon.\nWhat is key 7421?\n/reset\nHello\n' >"$tmp/in"
case_ "chat, turns share their past" 0 chat -n 12
: >"$tmp/in"
case_ "inspect" 0 inspect --tensors --plan $model
case_ "tokenize" 0 tokenize --special "caf$(printf '\303\251') <|im_end|> 12345"
head -c 300000 $model >"$tmp/cut.gguf"
case_ "a cut file" 1 run -m "$tmp/cut.gguf" -p x
case_ "a prompt longer than the context" 1 run --ctx 8 -p "Tell me a tale about a fox and a lantern."
exit $failed
