#!/bin/sh
# plainsong beside llama.cpp on one machine: the same GGUF file, the same ids and positions, the same cores, in turns.
#   sh bench/peer/run.sh MODEL.gguf [options of rounds.py]        RUNS=5 THREADS=all BUILD=build/release
# llama.cpp comes from npm's node-llama-cpp as it was built by its publisher, and lands in build/llama.cpp with the headers
# of that release; peer.c drives it. Nothing of it is in this tree, in the program or in its tests.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
version=3.21.1
at=$root/build/llama.cpp
plainsong=${PLAINSONG:-${BUILD:-$root/build/release}/plainsong}

say() { echo "bench/peer: $*" >&2; }
[ $# -ge 1 ] || { say "which file? sh bench/peer/run.sh MODEL.gguf"; exit 2; }
[ -r "$1" ] || { say "cannot read $1"; exit 1; }
[ -x "$plainsong" ] || { say "no $plainsong: make builds it"; exit 1; }
case $(uname -s)-$(uname -m) in
Linux-x86_64) platform=linux-x64 ;;
Linux-aarch64) platform=linux-arm64 ;;
*) say "no prebuilt llama.cpp is known here for $(uname -s) $(uname -m)"; exit 1 ;;
esac
for tool in npm git python3 "${CC:-gcc}"; do
    command -v "$tool" >/dev/null || { say "needs $tool"; exit 1; }
done

# Only this platform's package of the seven that the main one would like to have: 84 MB instead of 700.
fetch() {
    rm -rf "$at" && mkdir -p "$at/npm" &&
        npm install --prefix "$at/npm" --ignore-scripts --omit=optional --no-audit --no-fund \
            "node-llama-cpp@$version" "@node-llama-cpp/$platform@$version" >"$at/npm.log" 2>&1 &&
        git clone -q --bare "$at/npm/node_modules/node-llama-cpp/llama/gitRelease.bundle" "$at/release.git" &&
        git -C "$at/release.git" archive HEAD include ggml/include | tar -x -C "$at" &&
        rm -rf "$at/release.git" && echo "$version" >"$at/version"
}
if [ "$(cat "$at/version" 2>/dev/null)" != "$version" ]; then
    say "fetching node-llama-cpp $version into build/llama.cpp"
    fetch || { say "could not fetch it: see $at/npm.log"; exit 1; }
fi
bins=$at/npm/node_modules/@node-llama-cpp/$platform/bins/$platform
release=$(sed -n 's/.*"tag": *"\([^"]*\)".*/\1/p' "$at/npm/node_modules/node-llama-cpp/llama/llama.cpp.info.json")
${CC:-gcc} -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -I"$at/include" -I"$at/ggml/include" "$here/peer.c" \
    "$bins"/libllama.v*.so "$bins"/libggml.v*.so "$bins"/libggml-base.so -Wl,-rpath,"$bins" -o "$at/peer" || exit 1
model=$1
shift
exec python3 "$here/rounds.py" --plainsong "$plainsong" --peer "$at/peer" --backends "$bins" \
    --peer-version "llama.cpp $release (node-llama-cpp $version)" --runs "${RUNS:-5}" --threads "${THREADS:-$(nproc)}" \
    "$@" "$model"
