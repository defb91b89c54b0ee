#!/bin/sh
# A short run of each fuzzer: its kept corpus, then inputs made from it with a fixed seed.
#   sh tests/fuzz/run.sh [RUNS [NAME]]      20,000 of each
# Prints "ok NAME" or "not ok NAME". Needs clang. What it finds stays in build/fuzz/.
set -u
cd "$(dirname "$0")/../.." || exit 1
runs=${1:-20000}
only=${2:-}
out=build/fuzz
failed=0
rm -rf $out
mkdir -p $out
base="src/base/base.c src/base/dtype.c src/model/gguf.c src/model/gguf_find.c"
answers="src/serve/bytes.c src/serve/stops.c src/serve/calls.c"

schema="src/serve/automaton.c src/serve/chars.c src/serve/digits.c src/serve/grammar.c src/serve/pattern.c
    src/serve/schema.c src/serve/schema_leaves.c src/serve/spelling.c src/serve/vocab_mask.c src/serve/vocab_trie.c"

# fuzz NAME MAX_LEN SOURCES_AND_LIBRARIES...
fuzz() {
    name=$1 max_len=$2
    shift 2
    [ -z "$only" ] || [ "$only" = "$name" ] || return 0
    if ! clang -std=c11 -D_GNU_SOURCE -Isrc -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
        "tests/fuzz/fuzz_$name.c" "$@" -lm -o $out/fuzz_$name; then
        echo "not ok fuzz_$name: does not build"
        failed=1
        return
    fi
    mkdir -p $out/corpus_$name
    if $out/fuzz_$name -seed=1 -runs="$runs" -max_len="$max_len" -timeout=20 -artifact_prefix=$out/ \
        $out/corpus_$name tests/fuzz/corpus/$name >$out/$name.log 2>&1; then
        tail -n 1 $out/$name.log
        echo "ok fuzz_$name: $runs inputs"
    else
        tail -n 60 $out/$name.log
        echo "not ok fuzz_$name"
        failed=1
    fi
}

# The lists become words.
# shellcheck disable=SC2086
{
    fuzz gguf 8192 $base src/model/hparams.c src/model/weights.c
    fuzz token 512 $base src/model/token*.c -lpcre2-8 -lutf8proc
    fuzz schema 512 $base $schema src/model/token*.c -lpcre2-8 -lutf8proc -ljansson -pthread
    fuzz request 2048 $base $answers src/serve/api_error.c src/serve/fields.c src/serve/request*.c -ljansson
    fuzz stops 512 $base $answers src/serve/answer.c src/model/token*.c -lpcre2-8 -lutf8proc -ljansson
}
exit $failed
