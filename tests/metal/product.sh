#!/bin/sh
# plainsong with --device metal, over the fake Metal (a build with METAL=fake): the CPU's text, every stream alone and in company, a report, and
# a server whose GPU gives up.
#   sh tests/metal/product.sh PLAINSONG
# Prints "ok NAME" or "not ok NAME: why"; ends with 1 when one failed.
set -u
plainsong=$1
tmp=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0
verdict() { # STATUS NAME WHY
    if [ "$1" -eq 0 ]; then
        echo "ok $2"
    else
        echo "not ok $2: $3"
        failed=1
    fi
}

# One command buffer a step, and one for each launch without the setup cache.
for device in cpu metal; do
    PLAINSONG_FAKE_METAL=single "$plainsong" run --device $device -p "Tell me a tale about a fox and a lantern." -n 24 >"$tmp/$device" 2>"$tmp/err"
    verdict $? "run --device $device" "$(tail -n 1 "$tmp/err")"
done
"$plainsong" run --device metal --no-setup-cache --ctx 512 -p "Tell me a tale about a fox and a lantern." -n 24 >"$tmp/one-by-one" 2>"$tmp/err"
verdict $? "run --device metal --no-setup-cache" "$(tail -n 1 "$tmp/err")"
cmp "$tmp/cpu" "$tmp/metal" >"$tmp/cmp" 2>&1
verdict $? "the CPU's tale" "$(cat "$tmp/cmp")"
cmp "$tmp/cpu" "$tmp/one-by-one" >"$tmp/cmp" 2>&1
verdict $? "the CPU's tale, a command buffer for each launch" "$(cat "$tmp/cmp")"

"$plainsong" verify --device metal --quick --kv f16 --streams 1,2,4 --gen 4 --report "$tmp/report" >"$tmp/out" 2>&1
status=$?
last=$(tail -n 1 "$tmp/out")
case "$status $last" in
"0 verify: "*" 0 differ, hash "*) verdict 0 "verify --device metal: $last" ;;
*) cat "$tmp/out"; verdict 1 "verify --device metal" "status $status, $last" ;;
esac
for line in 'plainsong ' 'system ' 'device    metal, Fake Metal' 'self-test passed' 'golden    .* as frozen' 'verify: '; do
    grep -q "^$line" "$tmp/report" 2>/dev/null
    verdict $? "the report has \"$line\"" "$(head -n 12 "$tmp/report" 2>/dev/null | tr '\n' '|')"
done
! grep -qE "$tmp|$PWD|/models/" "$tmp/report"
verdict $? "the report names no path" "$(grep -nE "$tmp|$PWD|/models/" "$tmp/report")"

# ---- launches of a layer: a model of qwen3-30b-a3b's width, with fewer and smaller experts

python3 - "$tmp/wide.gguf" >"$tmp/out" 2>&1 <<'END'
import sys
sys.path.insert(0, "tools")
import make_synthetic_gguf as made
made.PRESETS["wide"] = (2, 2048, 32, 4, 128, 16, 8, 256, 6144, 512)
made.blocks = lambda kind, n, *_: bytes(n)
sys.argv = ["", sys.argv[1], "--preset", "wide"]
made.main()
END
verdict $? "a wide model" "$(tail -n 1 "$tmp/out")"
for rows in 1 2 3 4 5 6 7 8 9 16 32 64; do
    allowed=$((rows == 1 ? 6 : rows <= 8 ? 7 : 8))
    most=$("$plainsong" inspect "$tmp/wide.gguf" --device metal --launches $rows 2>&1 | sed -n 's/^\([0-9]*-\)*\([0-9]*\) launches,.* in a layer$/\2/p')
    [ -n "$most" ] && [ "$most" -le $allowed ]
    verdict $? "a step of $rows: at most $allowed launches a layer" "$most"
done
rm -f "$tmp/wide.gguf"

# ---- refusals

PLAINSONG_FAKE_METAL=none "$plainsong" run --device metal -p x >"$tmp/out" 2>&1
[ $? -eq 1 ] && [ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -q 'no GPU that Metal can use' "$tmp/out"
verdict $? "no Metal: one line" "$(cat "$tmp/out")"
PLAINSONG_FAKE_METAL=working_set=700000000 "$plainsong" serve --device metal --slots 64 --ctx 4096 --port 0 >"$tmp/out" 2>&1
[ $? -eq 1 ] && grep -q 'try --slots .*sudo sysctl iogpu.wired_limit_mb=' "$tmp/out"
verdict $? "too little memory: what to type" "$(cat "$tmp/out")"
# What it says to type is enough, without a --ctx too.
slots() { # WIRED_BYTES: leaves the answer in $tmp/out
    PLAINSONG_FAKE_METAL=working_set=$1,ram=34359738368 "$plainsong" run --device metal --slots 1024 -p x -n 1 >"$tmp/out" 2>&1
}
! slots 400000000 && mb=$(sed -n 's/.*wired_limit_mb=\([0-9]*\).*/\1/p' "$tmp/out") && [ -n "$mb" ] && slots $((mb << 20))
verdict $? "1,024 slots fit under the limit that was to be typed, $mb MB" "$(cat "$tmp/out")"

# ---- a server

PLAINSONG_FAKE_METAL=fail_at=12 "$plainsong" serve --device metal --slots 2 --ctx 256 --port 0 >"$tmp/log" 2>&1 &
server=$!
python3 - "$tmp/log" >"$tmp/said" 2>&1 <<'END'
import json, re, sys, time, urllib.error, urllib.request

def port():
    for _ in range(600):
        found = re.search(r"127\.0\.0\.1:(\d+)", open(sys.argv[1]).read())
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise SystemExit("no server: " + open(sys.argv[1]).read())

base = "http://127.0.0.1:" + port()

def ask(path, body=None):
    try:
        with urllib.request.urlopen(base + path, json.dumps(body).encode() if body else None, timeout=60) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()

while '"loading"' in ask("/health")[1]:
    time.sleep(0.1)
status, text = ask("/health")
assert status == 200, (status, text)
status, text = ask("/v1/completions", {"prompt": "A fox", "max_tokens": 60, "temperature": 0, "ignore_eos": True})
assert status >= 500, (status, text)
status, text = ask("/health")
assert status == 503 and "SubmissionsIgnored" in text, (status, text)
END
rc=$?
PLAINSONG_FAKE_METAL=working_set=500000000 "$plainsong" run --device metal -p x >"$tmp/out" 2>&1
[ $? -eq 1 ] && grep -q "another plainsong (pid $server) holds" "$tmp/out"
verdict $? "a second one on the same Mac is told of the first" "$(cat "$tmp/out")"
verdict $rc "a GPU that gives up: the request fails, /health is 503" "$(tail -n 3 "$tmp/said" | tr '\n' ' ')"
kill "$server"
wait "$server"
verdict $? "that server ends in order, nothing left over" "$(tail -n 1 "$tmp/log")"

# Asked to end while a thread of it compiles.
PLAINSONG_FAKE_METAL=compile_ms=5000 "$plainsong" serve --device metal --slots 2 --ctx 256 --port 0 >"$tmp/log" 2>&1 &
server=$!
sleep 1.5
kill "$server"
wait "$server"
status=$?
[ $status -eq 0 ] && tail -n 1 "$tmp/log" | grep -q "stopped while loading"
verdict $? "a server that is told to end while the kernels are compiled" "status $status, $(tail -n 1 "$tmp/log")"
server=
exit $failed
