# For scripts that print "ok NAME" or "not ok NAME: why" and end with `exit $failed`: read by `. tests/holds.sh` from the tree's root. $tmp: a folder that is
# gone when they are.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0

# holds NAME COMMAND...
holds() {
    name=$1
    shift
    if "$@" >"$tmp/said" 2>&1; then
        echo "ok $name"
    else
        cat "$tmp/said"
        echo "not ok $name"
        failed=1
    fi
}

# refused WORDS COMMAND...: ends with status 1 and one line on stderr that has the words, nothing on stdout
refused() {
    words=$1
    shift
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
    [ $status -eq 1 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -e "$words" "$tmp/err" && return
    echo "status $status, expected 1 and: $words"
    head -n 5 "$tmp/out" "$tmp/err"
    return 1
}
