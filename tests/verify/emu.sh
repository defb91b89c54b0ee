#!/bin/sh
# plainsong verify on the emulated GPU: every stream's logits in company are its solo logits, and alone they are the CPU's.
#   sh tests/verify/emu.sh PLAINSONG
# Prints "ok NAME" or "not ok NAME". Under a minute on two cores that have nothing else to do.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0
"$1" verify --device emu --streams 1,2,4 --gen 4 >"$tmp/out" 2>&1
status=$?
last=$(tail -n 1 "$tmp/out")
case "$status $last" in
"0 verify: "*" 0 differ, hash "*) echo "ok emu: $last" ;;
*)
    cat "$tmp/out"
    echo "not ok verify --device emu: status $status, $last"
    failed=1
    ;;
esac
for device in cpu emu; do
    "$1" run --device "$device" -p "Tell me a tale about a fox and a lantern." -n 24 >"$tmp/$device" 2>&1 || failed=1
done
if cmp -s "$tmp/cpu" "$tmp/emu"; then
    echo "ok emu: the CPU's tale"
else
    cat "$tmp/cpu" "$tmp/emu"
    echo "not ok emu: the CPU's tale"
    failed=1
fi
exit $failed
