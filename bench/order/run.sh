#!/bin/sh
# What the fixed order of every sum costs (docs/numerics.md, rule 16), as a Markdown table.
#   sh bench/order/run.sh [ISA]        BUILD: where the library was built (build/release)
# fast.c alone is compiled with -ffast-math, for this machine, and once more without, in the product's order. Linked is
# without: with it the whole process would flush denormals.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build/release}
[ -f "$build/internal.a" ] || { echo "no $build/internal.a: make builds it" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
native="-march=native -mprefer-vector-width=512"
flags="-std=c11 -D_GNU_SOURCE -I$root/src -I$root/include -O3 -Wall -Wextra -Wshadow -pthread"
${CC:-gcc} $flags $native -ffast-math -c "$here/fast.c" -o "$tmp/fast.o"
${CC:-gcc} $flags $native -ffp-contract=off -DFIXED_ORDER -c "$here/fast.c" -o "$tmp/fixed.o"
${CC:-gcc} $flags -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -Droute_topk=fixed_route -c \
    "$root/src/kernel/route.c" -o "$tmp/route.o"
${CC:-gcc} $flags "$here/order.c" "$tmp/fast.o" "$tmp/fixed.o" "$tmp/route.o" "$build/internal.a" -lmvec -lm -pthread -o "$tmp/order"
"$tmp/order" "$@"
