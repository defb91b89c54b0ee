#!/bin/sh
# plainsong verify --quick: every stream's logits in company are its solo logits; a hash that other builds must repeat.
#   sh tests/verify/quick.sh PLAINSONG [OTHER_PLAINSONG]
# Prints "ok NAME" or "not ok NAME".
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0
for plainsong; do
    "$plainsong" verify --quick >"$tmp/out" 2>&1
    status=$?
    last=$(tail -n 1 "$tmp/out")
    case "$status $last" in
    "0 verify: "*" 0 differ, hash "*) echo "ok $last" ;;
    *)
        cat "$tmp/out"
        echo "not ok $plainsong verify --quick: status $status, $last"
        failed=1
        ;;
    esac
    echo "${last##*hash }" >>"$tmp/hashes"
done
if [ $# -gt 1 ]; then
    if [ "$(sort -u "$tmp/hashes" | wc -l)" -eq 1 ]; then
        echo "ok all builds give one hash"
    else
        cat "$tmp/hashes"
        echo "not ok all builds give one hash"
        failed=1
    fi
fi
exit $failed
