#!/bin/sh
# One test program: runs it, prints one line, leaves its counts in a file.
#   sh tools/program.sh COUNTS_DIR LABEL COMMAND [ARGS...]
# The program says "ok ..." and "not ok ..." at the start of lines (cmocka does with CMOCKA_MESSAGE_OUTPUT=TAP). Beside
# each "not ok", one more failure is counted when it ends with a status that no line accounts for (a crash, a leak), ends
# before its plan "1..N" is fulfilled, or says nothing. A skip is neither passed nor failed: it is printed with its
# reason, the line before it; a script says "skipped NAME: why". Always ends with 0, so that others go on.
set -u
[ $# -gt 1 ] || exit 0 # no program: GNU's xargs calls once for an empty list
counts=$1 label=$2
shift 2
log=$counts/$label.log
export CMOCKA_MESSAGE_OUTPUT=TAP
limit=
command -v timeout >/dev/null && limit="timeout --foreground -k 10 900"
begin=$(date +%s)
# shellcheck disable=SC2086
$limit "$@" >"$log" 2>&1 </dev/null
status=$?
seconds=$(($(date +%s) - begin))

# passed failed skipped planned
set -- $(awk '
    /^(not )?ok .*# SKIP/ || /^skipped / { skipped++; next }
    /^ok / { passed++ }
    /^not ok / { failed++ }
    /^1\.\.[0-9]+/ { planned += substr($1, 4) }
    END { print passed + 0, failed + 0, skipped + 0, planned + 0 }' "$log")
passed=$1 failed=$2 skipped=$3 planned=$4
why=
if [ "$status" -eq 124 ]; then
    why="stopped after 900 s"
elif [ "$planned" -gt $((passed + failed + skipped)) ]; then
    why="ended with status $status after $((passed + failed + skipped)) of $planned tests"
elif [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    why="ended with status $status"
elif [ $((passed + failed + skipped)) -eq 0 ]; then
    why="ran no test"
fi
[ -n "$why" ] && failed=$((failed + 1))
echo "$passed $failed" >"$counts/$label.count"

{
    word=ok
    [ "$failed" -gt 0 ] && word=FAIL
    printf '%-4s %-34s %4d passed' "$word" "$label" "$passed"
    [ "$failed" -gt 0 ] && printf ', %d failed' "$failed"
    [ "$skipped" -gt 0 ] && printf ', %d skipped' "$skipped"
    printf '  %d s\n' "$seconds"
    awk '/^(not )?ok .*# SKIP/ {
            name = $0
            sub(/^(not )?ok [0-9]* *-? */, "", name)
            sub(/# SKIP */, "", name)
            print "     skipped: " name ": " (before ~ /^(not ok|ok|1\.\.|# )/ || before == "" ? "gives no reason" : before)
        }
        /^skipped / { print "     " $0 }
        { before = $0 }' "$log"
    if [ "$failed" -gt 0 ]; then
        grep '^not ok ' "$log" | head -n 20 | sed 's/^/     /'
        [ -n "$why" ] && echo "     $why; its last lines:"
        tail -n 40 "$log" | cut -c 1-300 | sed 's/^/     | /'
    fi
} >"$counts/$label.said"
cat "$counts/$label.said"
exit 0
