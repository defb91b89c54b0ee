# Read by the scripts beside it: `. begin.sh` after `set -- MODEL`. MODEL: a GGUF file, plainsong-tiny when not given.
# PLAINSONG, RUNS and BUILD in the environment say otherwise what is run, how often, and where it was built.
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build/release}
plainsong=${PLAINSONG:-$build/plainsong}
model=${1:-$root/models/plainsong-tiny-q4_0.gguf}
runs=${RUNS:-5}
[ -x "$plainsong" ] || { echo "no $plainsong: make builds it" >&2; exit 1; }

compare() { # COLUMNS VARIANT...
    python3 "$here/compare.py" "$plainsong" "$model" "$runs" "$@"
}

scene() { # NAME
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O2 -I"$root/include" "$here/streams.c" "$build/libplainsong.a" -lpcre2-8 -lutf8proc \
        -ljansson -lm -pthread -o "$tmp/streams" || exit 1
    echo "$("$plainsong" --version | head -n 1); $(basename "$model"); $runs runs"
    "$tmp/streams" "$1" "$model" "$runs"
}
