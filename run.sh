#!/bin/sh
# From a clone to words: installs what is missing, builds build/release/plainsong and runs it.
#   sh run.sh                    the shipped model tells a tale
#   sh run.sh chat               any arguments are plainsong's own: sh run.sh --help
# The answer goes to standard output, what happens before it to standard error.
set -eu
root=$(cd "$(dirname "$0")" && pwd)
install_root=$root
. "$root/tools/install.sh"
install_needs run || exit 1

cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
if ! make -C "$root" -q build/release/plainsong >/dev/null 2>&1; then
    echo "building build/release/plainsong (a minute or two)" >&2
    make -C "$root" -s -j"$cores" build/release/plainsong >&2
fi

if [ $# -eq 0 ]; then
    set -- run -p "Tell me a tale about a fox and a lantern."
    echo "plainsong run -p \"$3\"" >&2
fi
exec "$root/build/release/plainsong" "$@"
