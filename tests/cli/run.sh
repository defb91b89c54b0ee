#!/bin/sh
# The command line as users meet it: real processes, files, exit statuses and lines on stderr.
#   sh tests/cli/run.sh PLAINSONG
# Prints "ok NAME" or "not ok NAME: why" for each check and a count; ends with 1 when one failed. Needs python3.
set -u
plainsong=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
model=$root/models/plainsong-tiny-q4_0.gguf
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
[ -x "$plainsong" ] || {
    echo "no program at $1" >&2
    exit 1
}
cd "$root" || exit 1
n=0
failed=0

ok() {
    n=$((n + 1))
    echo "ok $1"
}

not_ok() {
    n=$((n + 1))
    failed=$((failed + 1))
    echo "not ok $1: $2"
}

# run STATUS NAME ARGS...: runs plainsong, leaves $tmp/out and $tmp/err; false, reported, on another status.
run() {
    want=$1 name=$2
    shift 2
    "$plainsong" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    [ $got -eq "$want" ] && return 0
    not_ok "$name" "status $got, expected $want: $(head -c 300 "$tmp/err")"
    return 1
}

# gives STATUS NAME TEXT ARGS...: and stdout has TEXT.
gives() {
    status=$1 name=$2 text=$3
    shift 3
    run "$status" "$name" "$@" || return
    if grep -qF -- "$text" "$tmp/out"; then ok "$name"; else not_ok "$name" "no \"$text\" in $(head -c 300 "$tmp/out")"; fi
}

# says STATUS NAME TEXT ARGS...: fails with one line on stderr that has TEXT, and nothing on stdout.
says() {
    status=$1 name=$2 text=$3
    shift 3
    run "$status" "$name" "$@" || return
    if [ "$(wc -l <"$tmp/err")" -ne 1 ]; then
        not_ok "$name" "not one line: $(head -c 300 "$tmp/err")"
    elif [ -s "$tmp/out" ]; then
        not_ok "$name" "stdout: $(head -c 300 "$tmp/out")"
    elif ! grep -qF -- "$text" "$tmp/err"; then
        not_ok "$name" "no \"$text\" in $(cat "$tmp/err")"
    else
        ok "$name"
    fi
}

# same NAME FILE FILE
same() {
    if cmp -s "$2" "$3"; then ok "$1"; else not_ok "$1" "$(cmp "$2" "$3" 2>&1)"; fi
}

# holds NAME COMMAND...
holds() {
    name=$1
    shift
    if why=$("$@" 2>&1); then ok "$name"; else not_ok "$name" "$why"; fi
}

json() { # FIELD of $tmp/out
    python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$tmp/out" "$1"
}

# ---- help, version, usage

gives 0 "--version" "instruction sets: scalar" --version
gives 0 "--help" "plainsong run -p" --help
for command in $("$plainsong" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
    gives 0 "$command --help" "usage: plainsong $command" $command --help
    wide=$(awk 'length > 80' "$tmp/out")
    if [ -z "$wide" ]; then ok "$command --help fits 80 columns"; else not_ok "$command --help fits 80 columns" "$wide"; fi
done
run 2 "no command" && ok "no command"
says 2 "unknown command" 'no command "sing": expected one of run, chat, serve, inspect, tokenize' sing

wrong() { # ARGS... of run, the last two are OPTION VALUE: the line names both
    for value; do :; done
    says 2 "wrong: $*" "\"$value\"" run -p x "$@"
}
for option in --slots --ctx --threads -n; do
    for value in 12abc "" -1 0 1.5 99999999999999999999 4294967297 nan " 4" 0x10; do
        wrong $option "$value"
    done
done
for option in --temp --top-p --min-p --repeat-penalty; do
    for value in "" abc 1x nan inf -0.5 1e400 0x1p3 " 1" 101; do
        wrong $option "$value"
    done
done
wrong --seed 18446744073709551616
wrong --seed -1
wrong --kv f32
wrong --kv "f16|q8_0"
wrong --device tpu
wrong --isa sse
wrong --experts ""
wrong --logit-bias 5
wrong --logit-bias =1
wrong --logit-bias 5=x
wrong --logit-bias -5=1
wrong --logit-bias 5=nan
says 2 "an option cut short" "--tokens: expected N" run -p x -n
says 2 "no such option" "no option --no-such" run -p x --no-such
says 2 "a flag with a value" '--json "1"' run -p x --json=1
says 2 "a stray argument" '"y"' run -p x y
says 2 "no prompt" "expected either -p TEXT or -f FILE" run
says 2 "two prompts" "both -p and -f" run -p x -f y
says 2 "--system with --raw" "--system with --raw" run --raw --system x -p y
says 2 "escapes in a message" 'no option --\x1b[2J\x0a' run -p x "$(printf -- '--\033[2J\nx')"
says 2 "inspect without a file" "expected MODEL" inspect
says 2 "inspect for a device, but nothing of it" "--device emu: expected --plan or --launches with it" inspect "$model" --device emu
says 2 "tokenize without a text" "expected TEXT" tokenize

# ---- run

gives 0 "run answers" "348 + 275 = 623." run -p "What is 348 + 275?"
printf '348 + 275 = 623.\n' >"$tmp/want"
same "the answer, one newline, nothing else" "$tmp/out" "$tmp/want"
if [ -s "$tmp/err" ]; then not_ok "stderr is silent" "$(cat "$tmp/err")"; else ok "stderr is silent"; fi

tale="Tell me a tale about a fox and a lantern."
run 0 "a tale" run -p "$tale" -n 40 && cp "$tmp/out" "$tmp/tale"
run 0 "another time" run -p "$tale" -n 40 --threads 1 --isa scalar --no-setup-cache --experts per-row --serialize &&
    same "the same bytes with one thread, scalar kernels, no cache, experts apart" "$tmp/out" "$tmp/tale"
printf '%s' "$tale" >"$tmp/prompt"
run 0 "from a file" run -f "$tmp/prompt" -n 40 && same "-f FILE is as -p" "$tmp/out" "$tmp/tale"
"$plainsong" run -f - -n 40 <"$tmp/prompt" >"$tmp/out" && same "-f - is as -p" "$tmp/out" "$tmp/tale"
run 0 "a seed" run -p "$tale" -n 40 --temp 1 --seed 7 && cp "$tmp/out" "$tmp/seeded"
if cmp -s "$tmp/seeded" "$tmp/tale"; then not_ok "--temp 1" "as greedy"; else ok "--temp 1 tells another tale"; fi
run 0 "a seed again" run -p "$tale" -n 40 --temp=1 --seed=7 --threads 1 && same "--seed repeats it" "$tmp/out" "$tmp/seeded"
gives 0 "--system" "Arr!" run --system "You are a pirate." -p "Who are you?"
gives 0 "--logit-bias forbids a token" "length" run -p "What is 348 + 275?" -n 20 --logit-bias 4089=-1000 --json

if run 0 "--json" run --json -p "What is 348 + 275?"; then
    [ "$(json text)" = "348 + 275 = 623." ] && ok "--json text" || not_ok "--json text" "$(json text)"
    [ "$(json finish_reason) $(json prompt_tokens) $(json tokens)" = "stop 20 14" ] && ok "--json counts" ||
        not_ok "--json counts" "$(cat "$tmp/out")"
    hash=$(json logits_hash)
    run 0 "--json again" run --json -p "What is 348 + 275?" --threads 1 --isa scalar &&
        if [ "$(json logits_hash)" = "$hash" ]; then ok "the same logits"; else not_ok "the same logits" "$hash"; fi
fi
run 0 "-n" run --json -p "$tale" -n 5 &&
    if [ "$(json finish_reason) $(json tokens)" = "length 5" ]; then ok "-n 5"; else not_ok "-n 5" "$(cat "$tmp/out")"; fi

run 0 "--verbose" run --verbose --profile -p "What is 2 + 3?" &&
    for line in "prompt: 16 tokens" "generation: " " MB a token" " GB/s" "last logits: " "wait "; do
        if grep -qF "$line" "$tmp/err"; then ok "--verbose: $line"; else not_ok "--verbose: $line" "$(cat "$tmp/err")"; fi
    done

# ---- what it costs

run 0 "the cost" run --verbose --ctx 512 -p "What is 2 + 3?" -n 1 &&
    for line in "^memory: 25.9 MB weights, 1.6 MB keys and values (1 x 512 x 3072 bytes),$" \
        "^  .* setup, .* scratch: .* in all of the .* that were free$"; do
        if grep -q "$line" "$tmp/err"; then ok "the cost: $line"; else not_ok "the cost: $line" "$(cat "$tmp/err")"; fi
    done
run 0 "the cost of bench" bench --streams 2 --gen 4 --prompt 4 --runs 1 &&
    if grep -q "^memory: .*(2 x 256 x 3072 bytes)" "$tmp/err"; then ok "bench says its cost"; else not_ok "bench says its cost" "$(cat "$tmp/err")"; fi
run 0 "the cost of verify" verify --golden &&
    if grep -q "^memory: " "$tmp/err"; then ok "verify says its cost"; else not_ok "verify says its cost" "$(cat "$tmp/err")"; fi

# Another of our kind is told by the program's name: one that only these two processes have.
other=$tmp/own$$
cp "$plainsong" "$other"
mkfifo "$tmp/held"
"$other" chat -m "$model" --verbose <"$tmp/held" >"$tmp/out" 2>"$tmp/held.err" &
other_pid=$!
exec 3>"$tmp/held"
for _ in $(seq 600); do
    grep -q "in all" "$tmp/held.err" && break
    sleep 0.1
done
"$other" run -m "$model" --verbose -p "What is 2 + 3?" -n 1 >"$tmp/out" 2>"$tmp/err" </dev/null
"$other" run -m "$model" -p "What is 2 + 3?" -n 1 >"$tmp/out" 2>"$tmp/quiet" </dev/null
exec 3>&-
wait $other_pid
if [ ! -d /proc/self ]; then
    echo "skipped: no /proc to find another plainsong in"
elif grep -q "^another plainsong (pid $other_pid) holds [0-9.]* MB$" "$tmp/err"; then
    ok "another plainsong is named"
else
    not_ok "another plainsong is named" "pid $other_pid: $(cat "$tmp/err")"
fi
if grep -q "another" "$tmp/held.err"; then not_ok "none is named where there is none" "$(cat "$tmp/held.err")"; else ok "none is named where there is none"; fi
if [ -s "$tmp/quiet" ]; then not_ok "a pipe is told nothing" "$(cat "$tmp/quiet")"; else ok "a pipe is told nothing"; fi

# ---- what users write is text

# 11 tokens without it, and its seven pieces: " <", "|", "im", "_", "end", "|", ">".
run 0 "control tokens" run --json -p "Say exactly: <|im_end|>" -n 30 &&
    if [ "$(json prompt_tokens)" -eq 18 ]; then ok "a user's <|im_end|> is text"; else not_ok "a user's <|im_end|> is text" "$(cat "$tmp/out")"; fi
printf 'a\0b' >"$tmp/nul"
run 0 "NUL bytes" run -f "$tmp/nul" -n 3 && ok "a NUL is a character"
run 0 "NUL bytes, raw" run --raw -f "$tmp/nul" -n 3 && ok "a NUL is a character in --raw"
printf 'ab\377' >"$tmp/bad"
says 1 "invalid UTF-8" "byte 0xff at offset 2: expected UTF-8" run -f "$tmp/bad"
says 1 "invalid UTF-8, raw" "byte 0xff at offset 2: expected UTF-8" run --raw -f "$tmp/bad"
says 2 "invalid UTF-8 in -p" "byte 0xff" run -p "$(printf '\377')"

# ---- what can go wrong outside

says 1 "no such prompt file" "No such file" run -f "$tmp/none"
says 1 "a folder as prompt" "Is a directory" run -f "$tmp"
says 1 "no such model" "none.gguf" run -m "$tmp/none.gguf" -p x
head -c 100000 "$model" >"$tmp/cut.gguf"
says 1 "a cut model" "cut.gguf" run -m "$tmp/cut.gguf" -p x
says 1 "an empty prompt" "empty" run --raw -p ""
yes "one two three four" | head -n 40 >"$tmp/long"
says 1 "a prompt longer than the context" "64" run --ctx 64 -f "$tmp/long"
says 1 "a context longer than the model's" "4096" run --ctx 5000 -p x
says 1 "a bias past the vocabulary" "99999" run --logit-bias 99999=1 -p x
if [ -e /dev/full ]; then
    "$plainsong" run -p "$tale" -n 3 >/dev/full 2>"$tmp/err"
    [ $? -eq 1 ] && grep -q "^plainsong run: cannot write to standard output" "$tmp/err" && ok "a full disk" ||
        not_ok "a full disk" "$(cat "$tmp/err")"
fi
"$plainsong" run -p "$tale" -n 3 >&- 2>"$tmp/err"
[ $? -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && ok "no stdout" || not_ok "no stdout" "$(cat "$tmp/err")"
"$plainsong" run -p "$tale" 2>"$tmp/err" | head -c 10 >"$tmp/out"
if [ -s "$tmp/err" ]; then not_ok "a reader that goes away" "$(cat "$tmp/err")"; else ok "a reader that goes away"; fi
PLAINSONG_PYTHON=$tmp/none "$plainsong" run -p x >"$tmp/out" 2>"$tmp/err"
[ $? -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q "run --raw" "$tmp/err" && ok "no Python" ||
    not_ok "no Python" "$(cat "$tmp/err")"
PLAINSONG_PYTHON=$tmp/none "$plainsong" run --raw -p "Once, in the village of" -n 3 >"$tmp/out" 2>"$tmp/err" &&
    ok "--raw without Python" || not_ok "--raw without Python" "$(cat "$tmp/err")"

# ---- the shipped model

mkdir -p "$tmp/a/build/x" "$tmp/a/models" "$tmp/b/bin" "$tmp/b/share/plainsong" "$tmp/c/models" "$tmp/d/bin"
for place in a/build/x b/bin d/bin; do cp "$plainsong" "$tmp/$place/plainsong"; done
for place in a/models b/share/plainsong c/models; do ln -s "$model" "$tmp/$place/"; done
for from in a/build/x b/bin; do
    (cd "$tmp" && "$tmp/$from/plainsong" tokenize --ids hello) >"$tmp/out" 2>"$tmp/err" && ok "shipped model beside $from" ||
        not_ok "shipped model beside $from" "$(cat "$tmp/err")"
done
(cd "$tmp/c" && "$tmp/d/bin/plainsong" tokenize --ids hello) >"$tmp/out" 2>"$tmp/err" && ok "shipped model in ./models" ||
    not_ok "shipped model in ./models" "$(cat "$tmp/err")"
(cd "$tmp" && "$tmp/d/bin/plainsong" run -p x) >"$tmp/out" 2>"$tmp/err"
[ $? -eq 1 ] && grep -q "no -m FILE" "$tmp/err" && ok "no shipped model" || not_ok "no shipped model" "$(cat "$tmp/err")"

# ---- tokenize

gives 0 "tokenize" '    1235  "Hello"' tokenize Hello
gives 0 "tokenize, text" '1235' tokenize --ids "Hello <|im_end|>"
if grep -q 4089 "$tmp/out"; then not_ok "tokenize sees no control tokens" "$(cat "$tmp/out")"; else ok "tokenize sees no control tokens"; fi
gives 0 "tokenize --special" "1235 220 4089" tokenize --special --ids "Hello <|im_end|>"
printf 'caf\303\251 \360\237\246\212\nx' >"$tmp/text"
"$plainsong" tokenize --ids - <"$tmp/text" >"$tmp/ids" && "$plainsong" tokenize --decode - <"$tmp/ids" >"$tmp/out"
echo >>"$tmp/text"
same "tokenize there and back" "$tmp/out" "$tmp/text"
gives 0 "tokenize --decode" "Hello" tokenize --decode "1235, 4089"
says 1 "a bad id" '"4096": expected token ids from 0 to 4095' tokenize --decode "1 4096"
says 1 "not an id" '"x": expected token ids' tokenize --decode "1 x"
gives 0 "a text like an option" '"-"' tokenize -- --ids

# ---- inspect

gives 0 "inspect" "16 of width 256, 4 for a token" inspect "$model"
gives 0 "inspect --tensors" "blk.5.ffn_down_exps.weight" inspect --tensors "$model"
wide=$(awk 'length > 80' "$tmp/out")
if [ -z "$wide" ]; then ok "inspect fits 80 columns"; else not_ok "inspect fits 80 columns" "$wide"; fi
[ "$(grep -c weight "$tmp/out")" -ge 74 ] && ok "inspect lists all tensors" || not_ok "inspect lists all tensors" "$(wc -l <"$tmp/out")"
gives 0 "inspect --plan" "experts in" inspect --plan "$model"
# No GPU need be there. A build's kernels have the shape of one of these: of the other it is said.
for device in cuda metal emu; do
    gives 0 "inspect --plan --device $device" "a step of so many" inspect "$model" --plan --device $device
    gives 0 "inspect --launches 1 --device $device" " launches, " inspect "$model" --launches 1 --device $device
    grep -c "in the shape this build has" "$tmp/out" >"$tmp/shape-$device"
done
holds "inspect says whose shape it shows" \
    [ "$(cat "$tmp/shape-cuda" "$tmp/shape-metal" | sort | tr -d '\n') $(cat "$tmp/shape-emu")" = "01 0" ]
says 1 "inspect a cut file" "cut.gguf" inspect "$tmp/cut.gguf"
says 1 "inspect a text" "$here/run.sh" inspect "$here/run.sh"
says 1 "inspect nothing" "none.gguf" inspect "$tmp/none.gguf"

# ---- chat

cat >"$tmp/lines" <<'END'
Remember this: key 7421 is plum, key 3310 is pear. What is key 3310?
Now key 3310 is melon.
What is key 3310?
/reset
What is key 3310?
/nothing
/system You are a pirate.
Who are you?
END
"$plainsong" chat --verbose <"$tmp/lines" >"$tmp/out" 2>"$tmp/err"
status=$?
[ $status -eq 0 ] && ok "chat ends with its input" || not_ok "chat ends with its input" "status $status"
[ "$(sed -n 1p "$tmp/out")" = "Key 3310 is pear." ] && [ "$(sed -n 3p "$tmp/out")" = "Key 3310 is melon." ] &&
    ok "chat remembers" || not_ok "chat remembers" "$(cat "$tmp/out")"
[ "$(sed -n 4p "$tmp/out")" = "I do not know that." ] && ok "/reset forgets" || not_ok "/reset forgets" "$(sed -n 4p "$tmp/out")"
grep -q "^Arr!" "$tmp/out" && ok "/system" || not_ok "/system" "$(cat "$tmp/out")"
grep -q "no command /nothing" "$tmp/err" && ok "an unknown chat command" || not_ok "an unknown chat command" "$(cat "$tmp/err")"
kept=$(sed -n 's/^prompt: .*, \([0-9]*\) of them kept.*/\1/p' "$tmp/err" | sed -n 2p)
[ "${kept:-0}" -ge 38 ] && ok "turns reuse what they share" || not_ok "turns reuse what they share" "$kept kept"
if grep -q '^> ' "$tmp/err"; then not_ok "no prompt without a terminal" "$(cat "$tmp/err")"; else ok "no prompt without a terminal"; fi

{ cat "$tmp/long"; echo "What is 2 + 3?"; } | tr '\n' ' ' >"$tmp/lines" # one line, too long for 64 tokens
printf '\nWhat is 2 + 3?\n' >>"$tmp/lines"
"$plainsong" chat --ctx 64 <"$tmp/lines" >"$tmp/out" 2>"$tmp/err"
[ "$(cat "$tmp/out")" = "2 + 3 = 5." ] && grep -q "the context holds 64.*/reset" "$tmp/err" && ok "a full context loses one line" ||
    not_ok "a full context loses one line" "$(cat "$tmp/out" "$tmp/err")"
printf '%s\n' "$tale" | "$plainsong" chat --ctx 40 >"$tmp/out" 2>"$tmp/err"
grep -q "context of 40 tokens is full" "$tmp/err" && ok "an answer cut by the context says so" ||
    not_ok "an answer cut by the context says so" "$(cat "$tmp/err")"
printf 'ab\377\nWhat is 2 + 3?\n' | "$plainsong" chat >"$tmp/out" 2>"$tmp/err"
[ "$(cat "$tmp/out")" = "2 + 3 = 5." ] && grep -q "0xff" "$tmp/err" && ok "a line that is not UTF-8" ||
    not_ok "a line that is not UTF-8" "$(cat "$tmp/err")"

# ---- bench

says 2 "bench: a list" '--streams "1,,2"' bench --streams 1,,2
says 2 "bench: too few slots" "these streams need 4" bench --streams 1,4 --slots 2
says 2 "bench: a path with a plot" "--path with --plot: expected one of them" bench --path device --plot "$tmp/plot.svg"
says 2 "bench: a path with --mixed" "--path with --mixed" bench --path engine --mixed
run 0 "bench: one path" bench --path device --streams 1,2 --prompt 8 --gen 8 --runs 1 --json &&
    holds "bench: one path has a run for each number" python3 -c '
import json, sys
assert [(r["streams"], r["path"]) for r in json.load(open(sys.argv[1]))["runs"]] == [(1, "device"), (2, "device")]' "$tmp/out"
run 0 "bench: one stream in a submission" bench --serialize --streams 3 --prompt 8 --gen 8 --runs 2 --json &&
    holds "bench: the paths' logits are the same, one stream in a submission" python3 -c '
import json, sys
engine, device = [r["logits_hash"] for r in json.load(open(sys.argv[1]))["runs"]]
assert engine == device, (engine, device)' "$tmp/out"
says 2 "bench: a number" '--gen "2"' bench --gen 2
says 1 "bench: a context" "need a context of 5064" bench --prompt 5000
says 1 "bench: no such file" "nowhere.gguf" bench -m nowhere.gguf
gives 0 "bench: a table" "roofline" bench --streams 2 --prompt 8 --gen 8 --runs 1 --plot "$tmp/plot.svg"
if [ "$(awk '{ if (length > most) most = length } END { print most }' "$tmp/out")" -le 80 ]; then ok "bench: 80 columns"; else
    not_ok "bench: 80 columns" "$(cat "$tmp/out")"
fi
holds "bench: the plot is XML" python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$tmp/plot.svg"
run 0 "bench: JSON" bench --json --streams 1,3 --prompt 8 --gen 8 --runs 2 --profile &&
    holds "bench: JSON has every field" python3 -c '
import json, sys
j = json.load(open(sys.argv[1]))
for key in "model device cpu commit seed warmup peak_gb_s runs".split():
    assert key in j, key
assert [(r["streams"], r["path"]) for r in j["runs"]] == [(1, "engine"), (1, "device"), (3, "engine"), (3, "device")]
for r in j["runs"]:
    for key in "aggregate_tok_s stream_tok_s prompt_tok_s first_token_ms".split():
        assert 0 < r[key]["min"] <= r[key]["median"] <= r[key]["max"], (key, r)
    assert set(r["phase_ms"]) == {"setup", "submit", "wait", "tail"}, r
    for key in "submissions_per_step rows_per_step experts_hit_per_layer bytes_per_step gb_s share_of_peak".split():
        assert r[key] > 0, (key, r)
    assert len(r["logits_hash"]) == 16
    assert r["path"] == "engine" or (r["submissions_per_step"], r["rows_per_step"]) == (1, r["streams"]), r
hashes = [r["logits_hash"] for r in j["runs"]]
assert hashes[0] == hashes[1] and hashes[2] == hashes[3], hashes
' "$tmp/out"
if grep -q "^submit .*%" "$tmp/err"; then ok "bench: --profile"; else not_ok "bench: --profile" "$(cat "$tmp/err")"; fi
run 0 "bench: mixed" bench --mixed --json --streams 2 --prompt 200 --gen 16 --runs 1 &&
    holds "bench: mixed has its figures" python3 -c '
import json, sys
m = json.load(open(sys.argv[1]))["mixed"][0]
assert m["prompt_tokens"] == 200 and m["ratio_p95"]["median"] > 0 and m["prompt_tok_s"]["median"] > 0, m
' "$tmp/out"

# ---- bench of a server

says 1 "bench: no server" "is plainsong serve running there?" bench --http http://127.0.0.1:9
says 1 "bench: not a URL" '--http "127.0.0.1:9": expected http://HOST[:PORT]' bench --http 127.0.0.1:9
says 2 "bench: a key without a server" "expected --http URL with it" bench --api-key-file "$tmp/keys"
says 2 "bench: a server and --mixed" "expected one of them" bench --http http://127.0.0.1:9 --mixed
echo "a-key-of-the-test" >"$tmp/keys"
"$plainsong" serve --port 0 --slots 2 --api-key-file "$tmp/keys" >"$tmp/serve.out" 2>"$tmp/serve.err" </dev/null &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$tmp"' EXIT
tries=0
while ! grep -q "Z ready " "$tmp/serve.err" && kill -0 $server 2>/dev/null && [ $tries -lt 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
url=http://127.0.0.1:$(sed -n 's/.*Z listening .*:\([0-9]*\)$/\1/p' "$tmp/serve.err")
says 1 "bench: a server that wants a key" "answers 401: " bench --http "$url" --streams 1
says 1 "bench: a server's slots" "has 2 slots and --streams asks for 3" bench --http "$url" --streams 3 --api-key-file "$tmp/keys"
says 1 "bench: a server's context" "that of $url is 4096" bench --http "$url" --streams 1 --prompt 5000 --api-key-file "$tmp/keys"
says 1 "bench: nothing at a path" "answers 404: " bench --http "$url/none" --streams 1 --api-key-file "$tmp/keys"
set -- --http "$url" --api-key-file "$tmp/keys" --streams 1,2 --prompt 8 --gen 16 --runs 2
gives 0 "bench: a server beside an engine" "every text the same by both" bench "$@" -m "$model"
run 0 "bench: a server's JSON" bench "$@" -m "$model" --json &&
    holds "bench: a server's JSON has every field" python3 -c '
import json, sys
j = json.load(open(sys.argv[1]))
assert (j["model"], j["slots"], j["ctx"], j["repeats"]) == ("plainsong-tiny-q4_0", 2, 4096, 2), j
assert [(r["streams"], r["path"]) for r in j["runs"]] == [(1, "http"), (1, "engine"), (2, "http"), (2, "engine")]
assert [r["streams"] for r in j["http_to_engine"]] == [1, 2]
for r in j["runs"]:
    for key in "with_first_tok_s first_byte_ms first_token_ms".split():
        assert 0 < r[key]["min"] <= r[key]["median"] <= r[key]["max"], (key, r)
    for key in "aggregate_tok_s first_token_p95_ms between_ms between_p95_ms".split():
        assert r[key]["median"] >= 0, (key, r)
' "$tmp/out"
kill $server
wait $server
status=$?
trap 'rm -rf "$tmp"' EXIT
if [ $status -eq 0 ]; then ok "serve: SIGTERM ends it with status 0"; else not_ok "serve: SIGTERM ends it with status 0" "$status"; fi

# ---- files a command writes: asked for before the work, whole or not at all, never the model

cp models/plainsong-tiny-q4_0.gguf "$tmp/own.gguf"
mkfifo "$tmp/fifo"
for asked in "bench --plot" "verify --report"; do
    # shellcheck disable=SC2086
    set -- $asked
    says 1 "$asked: the model itself" "is the model itself" "$1" -m "$tmp/own.gguf" "$2" "$tmp/own.gguf"
    says 1 "$asked: a FIFO" "not a regular file" "$1" "$2" "$tmp/fifo"
    says 1 "$asked: a folder" "not a regular file" "$1" "$2" "$tmp"
    says 1 "$asked: a folder that is not there" "$2 \"$tmp/none/x\"" "$1" "$2" "$tmp/none/x"
done
same "the model is as it was" models/plainsong-tiny-q4_0.gguf "$tmp/own.gguf"
stopped() { # a command that is stopped at its work leaves no file
    "$plainsong" "$@" "$tmp/stopped" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep 0.5
    kill -TERM $pid
    wait $pid
    [ $? -eq 143 ]
}
holds "bench --plot: stopped" stopped bench --plot
holds "verify --report: stopped" stopped verify --report
holds "nothing is left of them" sh -c "! ls $tmp/*.part $tmp/stopped"

# ---- descriptors that are closed, a file that goes away

closed() { # STATUS: of chat without descriptor 0, within 20 s
    timeout 20 "$plainsong" chat <&- >"$tmp/out" 2>"$tmp/err"
    [ $? -eq "$1" ]
}
holds "chat: closed standard input is its end" closed 0
cut_short() { # whenever it is cut: an empty file, a header cut off, or pages that are gone
    "$plainsong" quantize "$tmp/cut.gguf" "$tmp/q.gguf" --type q8_0 >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    : >"$tmp/cut.gguf"
    wait $pid
    [ $? -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ]
}
cp models/plainsong-tiny-q4_0.gguf "$tmp/cut.gguf"
holds "a model that is cut short is one line" cut_short

# ---- terminals and signals

for case in chat_interrupt chat_end chat_loading run_interrupt run_terminal run_flush; do
    holds "$case" python3 "$here/terminal.py" "$plainsong" $case
done

# ---- the man page names what there is

"$plainsong" run --help | sed -n 's/^ *\(-[a-z], \)\{0,1\}\(--[a-z-]*\).*/\2/p' | sort -u >"$tmp/options"
missing=$(while read -r option; do
    tr -d '\\' <"$root/docs/plainsong.1" 2>/dev/null | grep -qF -- "$option" || echo "$option"
done <"$tmp/options")
if [ -s "$tmp/options" ] && [ -z "$missing" ]; then ok "man page"; else not_ok "man page" "lacks $missing"; fi

echo "$n checks, $failed failed"
[ $failed -eq 0 ]
