#!/bin/sh
# The tree as a whole: what the binaries link, what `make install` leaves, and that the checks of the house can fail.
#   sh tests/house.sh             from the tree's root, after the release build
# Prints "ok NAME" or "not ok NAME: why".
set -u
. tests/holds.sh

# ---- what is linked: the libraries of architecture.md, and no one's arithmetic

links_only() { # FILE [LIBRARY]
    objdump -p "$1" | awk -v file="$1" -v more="^${2:-none}[.]so" '
        $1 == "NEEDED" && $2 !~ more && $2 !~ /^(libpcre2-8|libutf8proc|libjansson|libm|libc|ld-linux[-_a-z0-9]*)\.so/ {
            print file " links " $2
            bad = 1
        }
        END { exit bad }'
}
links_no_arithmetic() { # FILE, with all that its libraries link
    ! ldd "$1" | grep -iE 'blas|lapack|mkl|ggml|llama|cuda|cudnn|nccl|torch|onnx|dnnl|openvino|gomp'
}
holds "plainsong links its five libraries only" links_only build/release/plainsong libmicrohttpd
holds "libplainsong.so links its four libraries only" links_only build/release/libplainsong.so
for file in plainsong libplainsong.so; do
    holds "$file links no BLAS, ggml, CUDA or framework" links_no_arithmetic build/release/$file
done

# ---- make install (the library: tests/api.sh)

installs() {
    make -s install DESTDIR="$tmp/dest" PREFIX=/opt/p || return 1
    for file in bin/plainsong share/man/man1/plainsong.1 share/plainsong/plainsong-tiny-q4_0.gguf; do
        [ -s "$tmp/dest/opt/p/$file" ] || { echo "no $file"; return 1; }
    done
}
runs_installed() {
    said=$(cd / && "$tmp/dest/opt/p/bin/plainsong" run -p "What is 348 + 275?") || return 1
    [ "$said" = "348 + 275 = 623." ] || { echo "said: $said"; return 1; }
}
holds "make install" installs
holds "the installed plainsong finds its model and answers" runs_installed

# ---- the layers: each rule can be broken

# breaks RULE FILE LINE...: a copy of the tree with the lines added to the file.
breaks() {
    rule=$1 file=$2 line=$3
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree" && cp -R src include tools "$tmp/tree" && mkdir -p "$(dirname "$tmp/tree/$file")" &&
        printf '%b\n' "$line" >>"$tmp/tree/$file" || return 1
    if sh "$tmp/tree/tools/layers.sh" ${4:-} >"$tmp/layers" 2>&1; then
        echo "not noticed: $line in $file"
        return 1
    fi
    grep -q "^not ok $rule" "$tmp/layers" && grep -qF "$file" "$tmp/layers" && return 0
    cat "$tmp/layers"
    return 1
}
up="includes point up the table"
holds "layers: kernel may not include model" breaks "$up" src/kernel/pack.c '#include "model/gguf.h"'
holds "layers: base may not include plan" breaks "$up" src/base/base.h '  #  include  "plan/plan.h"'
holds "layers: engine may not include cpu internals" breaks "$up" src/engine/kv.c '#include "device/dev_cpu.h"'
holds "layers: serve knows no tensors" breaks "$up" src/serve/planted.c '#include "model/weights.h"'
holds "layers: plan may not include the tokenizer" breaks "$up" src/plan/build.c '#include "model/token.h"'
holds "layers: the public header stands alone" breaks "$up" include/plainsong.h '#include "base/base.h"'
holds "layers: an unknown folder" breaks "$up" src/utils/planted.c '#include "base/base.h"'
holds "layers: exit under a library" breaks "exit() in main.c only" src/engine/kv.c 'void f(void) { exit(1); }'
holds "layers: one name twice" breaks "file names are unique" src/device/kv.c ''
holds "layers: a long file" breaks "no file over 800 lines" src/plan/long.c "$(yes x | head -n 801)"
mkdir -p "$tmp/o"
echo 'static int planted; int f(void); int f(void) { return planted++; }' | gcc -x c -c - -o "$tmp/o/planted.o"
holds "layers: a variable outside a function" sh -c "! sh tools/layers.sh '$tmp/o' >'$tmp/l' && grep -q 'planted in .bss' '$tmp/l'"

# ---- the counting of test.sh

# counts "PASSED FAILED" SCRIPT
counts() {
    printf '%s\n' "$2" >"$tmp/p.sh"
    sh tools/program.sh "$tmp" counted sh "$tmp/p.sh" >/dev/null
    got=$(cat "$tmp/counted.count")
    [ "$got" = "$1" ] || { echo "counted $got, expected $1: $2"; return 1; }
}
holds "counting: passed" counts "2 0" 'echo ok 1 - a; echo ok b'
holds "counting: failed" counts "1 1" 'echo ok a; echo not ok b; exit 1'
holds "counting: a crash" counts "1 1" 'echo 1..2; echo ok 1 - a; kill -SEGV $$'
holds "counting: a crash after the last test" counts "1 1" 'echo 1..1; echo ok 1 - a; exit 139'
holds "counting: a plan not fulfilled" counts "1 1" 'echo 1..2; echo ok 1 - a'
holds "counting: nothing run" counts "0 1" 'exit 0'
holds "counting: a skip is no pass" counts "1 0" 'echo 1..2; echo ok 1 - a; echo "not ok 2 # SKIP b"'

no_program() {
    xargs -P 3 -L 1 sh tools/program.sh "$tmp" </dev/null >"$tmp/said" 2>&1
    status=$?
    cat "$tmp/said"
    [ $status -eq 0 ] && [ ! -s "$tmp/said" ]
}
holds "counting: no program, since a build failed" no_program

# ---- the tree

size_kb() {
    find . \( -name .git -o -name build \) -prune -o -type f -exec ls -l {} + | awk '{ bytes += $5 } END { print int(bytes / 1000) }'
}
small() {
    kb=$(size_kb)
    [ "$kb" -lt 60000 ] || { echo "$kb kB"; return 1; }
}
holds "the tree is under 60 MB" small
scripts() {
    find . \( -name .git -o -name build -o -name node_modules \) -prune -o -name '*.sh' -print | while read -r script; do
        sh -n "$script" || echo "$script"
    done | { ! grep .; }
}
holds "every script parses" scripts
exit $failed
