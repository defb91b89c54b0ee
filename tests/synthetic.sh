#!/bin/sh
# Files with the geometry of Qwen3-30B-A3B, two of its 48 layers deep, load and run: q4_0 and q4_k_m, one after the other.
#   sh tests/synthetic.sh PLAINSONG
# Prints "ok NAME" or "not ok NAME: why" and the figures; ends with 1 when a check failed. Needs python3, 3 GB of free
# memory and 2 GB of disk under TMPDIR; with less it says so in one line and ends with 0.
set -u
plainsong=$1
disk_kb=2000000
memory_kb=3000000
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0

free_disk=$(df -Pk "$tmp" | awk 'NR == 2 { print $4 }')
free_memory=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo 2>/dev/null)
if [ "$free_disk" -lt $disk_kb ] || [ "${free_memory:-$memory_kb}" -lt $memory_kb ]; then
    echo "skipped synthetic: $free_disk kB of disk and ${free_memory:-?} kB of memory are free, wanted $disk_kb and $memory_kb"
    exit 0
fi

# holds NAME COMMAND...: and what it said, when it failed
holds() {
    name=$1
    shift
    if "$@" >"$tmp/said" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name: $(cat "$tmp/said" "$tmp/err" | head -c 500)"
        failed=1
    fi
}

answer() { # ARGS...: four tokens, greedy; the context is short because the keys and values of 40960 tokens are another test
    "$plainsong" run -m "$tmp/model.gguf" --raw -p "a b c" -n 4 --ctx 256 --verbose "$@" >"$tmp/out" 2>"$tmp/err"
}

has() { # PATTERN FILE
    grep -q -e "$1" "$2"
}

is_utf8() {
    python3 -c 'import sys; open(sys.argv[1], encoding="utf-8").read()' "$1"
}

for type in q4_0 q4_k_m; do
    : >"$tmp/err"
    holds "$type: two layers are written" python3 tools/make_synthetic_gguf.py "$tmp/model.gguf" --layers 2 --type $type
    holds "$type: runs" answer
    sed -n 's/^/    /; /^memory:/,/ in all/p; /^device:/p; /prompt:/p; /generation:/p; /read:/p' "$tmp/err"
    holds "$type: four tokens" has "^generation: 4 tokens" "$tmp/err"
    holds "$type: the answer is text" test -s "$tmp/out"
    holds "$type: the answer is UTF-8" is_utf8 "$tmp/out"
    grep "^last logits:" "$tmp/err" >"$tmp/hash"
    mv "$tmp/out" "$tmp/expected"
    holds "$type: runs with one thread, experts apart" answer --threads 1 --experts per-row
    holds "$type: and gives the same text" cmp "$tmp/expected" "$tmp/out"
    holds "$type: and the same logits" grep -qxF "$(cat "$tmp/hash")" "$tmp/err"
    rm -f "$tmp/model.gguf"
done
exit $failed
