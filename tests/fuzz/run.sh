#!/bin/sh
# A short run of the fuzzer over GGUF files: the kept corpus, then 20,000 inputs made from it with a fixed seed.
#   sh tests/fuzz/run.sh [RUNS]
# Prints "ok NAME" or "not ok NAME: why". Needs clang. What it finds stays in build/fuzz/.
set -u
cd "$(dirname "$0")/../.." || exit 1
runs=${1:-20000}
out=build/fuzz
rm -rf $out
mkdir -p $out/corpus
sources="src/model/gguf.c src/model/gguf_find.c src/model/hparams.c src/model/weights.c src/base/base.c src/base/dtype.c"
# shellcheck disable=SC2086
if ! clang -std=c11 -D_GNU_SOURCE -Isrc -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    tests/fuzz/fuzz_gguf.c $sources -lm -o $out/fuzz_gguf; then
    echo "not ok fuzz_gguf: does not build"
    exit 1
fi
if $out/fuzz_gguf -seed=1 -runs="$runs" -max_len=8192 -timeout=10 -artifact_prefix=$out/ -print_final_stats=1 \
    $out/corpus tests/fuzz/corpus/gguf >$out/gguf.log 2>&1; then
    echo "ok fuzz_gguf: $runs inputs, no finding"
else
    cat $out/gguf.log
    echo "not ok fuzz_gguf"
    exit 1
fi
