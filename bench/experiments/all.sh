#!/bin/sh
# Every experiment in turn, its table in Markdown on stdout.
#   sh bench/experiments/all.sh [MODEL.gguf]
# RUNS, BUILD and PLAINSONG as for each (begin.sh); what failed is named at the end, exit status 1.
set -u
here=$(cd "$(dirname "$0")" && pwd)
RUNS=${RUNS:-3}
export RUNS
failed=
for script in "$here"/[0-9]*.sh; do
    name=$(basename "$script" .sh)
    printf '## %s\n\n%s\n\n`RUNS=%s sh bench/experiments/%s.sh %s`\n\n' "$name" \
        "$(sed -n '2s/^# //p' "$script")" "$RUNS" "$name" "${1:+$(basename "$1")}"
    begun=$(date +%s)
    sh "$script" "$@" || failed="$failed $name"
    printf '\n%s s\n\n' $(($(date +%s) - begun))
done
[ -z "$failed" ] || {
    echo "failed:$failed" >&2
    exit 1
}
