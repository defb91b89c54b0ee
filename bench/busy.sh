#!/bin/sh
# How much of its speed decoding keeps while other processes want every core.
#   sh bench/busy.sh MODEL [plainsong]
# A run with the machine idle, then one of as many tokens with one spinning process for each core, in turn; the ratio of
# each pair, and their median. Needs a machine that does nothing else. SECONDS_IDLE (10) sets how long an idle run decodes,
# PAIRS (5) how many, STREAMS (1) how wide.
# The spinners are plain children of this script at normal priority. Where the kernel divides time by session
# (/proc/sys/kernel/sched_autogroup_enabled), they share ours, so that each of them weighs as much as one of our threads;
# APART=1 starts them in a session of their own, two against two of it.
set -eu
model=${1:?"usage: sh bench/busy.sh MODEL [plainsong]"}
plainsong=${2:-build/release/plainsong}
streams=${STREAMS:-1}
apart=$([ "${APART:-0}" = 1 ] && echo setsid || true)
spinners=

stop() {
    for pid in $spinners; do kill "$pid" 2>/dev/null || true; done
    for pid in $spinners; do wait "$pid" 2>/dev/null || true; done
    spinners=
}
trap stop EXIT
trap 'exit 1' INT TERM

spin() {
    for core in $(seq "$(nproc)"); do
        $apart sh -c 'while :; do :; done' &
        spinners="$spinners $!"
    done
}

rate() { # of so many tokens a stream, prompts apart
    "$plainsong" bench -m "$model" --streams "$streams" --slots "$streams" --prompt 16 --gen "$1" --ctx $(($1 + 32)) \
        --runs 1 --json | python3 -c '
import json, sys
runs = json.load(sys.stdin)["runs"]
print("%.2f" % next(r for r in runs if r["path"] == "engine")["aggregate_tok_s"]["median"])'
}

tokens=$(rate 32 | awk -v s="${SECONDS_IDLE:-10}" -v n="$streams" '{ t = int($1 / n * s); print t < 16 ? 16 : t }')
echo "$("$plainsong" --version | head -1), $(nproc) cores, $streams streams of $tokens tokens, spinners in $([ -n "$apart" ] && echo their own || echo this) session"
ratios=
for pair in $(seq "${PAIRS:-5}"); do
    idle=$(rate "$tokens")
    spin
    busy=$(rate "$tokens")
    stop
    ratio=$(awk -v i="$idle" -v b="$busy" 'BEGIN { printf "%.3f", b / i }')
    ratios="$ratios $ratio"
    printf '%d  idle %7.2f tok/s  busy %7.2f tok/s  ratio %s\n' "$pair" "$idle" "$busy" "$ratio"
done
printf '%s\n' $ratios | sort -n | awk '{ r[NR] = $1 } END {
    printf "median ratio %.3f of %d pairs, %.3f to %.3f\n", (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2, NR, r[1], r[NR] }'
