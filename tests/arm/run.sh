#!/bin/sh
# What each Arm processor is given, and that none of it is more than it has: an instruction that it lacks ends the program.
#   sh tests/arm/run.sh DIR       from the tree's root; DIR holds what `make bare` made for aarch64 (build/arm/bare)
# Prints "ok NAME" or "not ok NAME: why".
set -u
bare=$1
status=0

# takes PROCESSOR ISA...: all that it runs, best last; then the checks of rows and attention with each of these.
takes() {
    cpu=$1
    shift
    got=$(qemu-aarch64 -cpu "$cpu" "$bare/list_isas")
    if [ "$got" = "$*" ]; then
        echo "ok $cpu takes ${got##* }"
    else
        echo "not ok $cpu takes ${got##* }: runs \"$got\", expected \"$*\""
        status=1
    fi
}
runs() { # PROCESSOR TEST
    if said=$(qemu-aarch64 -cpu "$1" "$bare/$2" 2>&1); then
        echo "ok $1 runs $2"
    else
        echo "$said"
        echo "not ok $1 runs $2: its lines are above"
        status=1
    fi
}
takes cortex-a72 scalar neon
takes cortex-a76 scalar neon neon-dotprod
takes max scalar neon neon-dotprod neon-i8mm
runs cortex-a72 test_rows
runs cortex-a76 test_attend
exit $status
