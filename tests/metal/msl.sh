#!/bin/sh
# The kernel text for Apple's compiler, looked at by clang++ on any machine: that it parses as Metal's C++14 over a
# small standard library of our own (tests/metal/shim), with address spaces that are not each other's; that what the
# dialect leaves out is not there; and that each of these looks can fail. Apple's own compiler has not seen the text:
# what this does not prove docs/gpu.md says.
#   sh tests/metal/msl.sh [BUILD_DIR]       of `make METAL=fake B=BUILD_DIR msl`: what that compiled is not compiled again
# Prints "ok NAME" or "not ok NAME: why"; where there is no clang++, that it was skipped.
set -u
cd "$(dirname "$0")/../.." || exit 1
if ! command -v clang++ >/dev/null; then
    echo "skipped metal text: there is no clang++"
    exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0

# holds NAME COMMAND...
holds() {
    name=$1
    shift
    if "$@" >"$tmp/said" 2>&1; then
        echo "ok $name"
    else
        head -n 20 "$tmp/said"
        echo "not ok $name"
        failed=1
    fi
}

sh tools/metal_text.sh >"$tmp/kernels.metal" || exit 1

msl() { # FILE FLAGS...: the shim's keyword would be put into the attribute of that name
    file=$1
    shift
    sed 's/ \[\[threadgroup(0)\]\]//' "$file" >"$file.cc"
    clang++ -x c++ -std=c++14 -D__METAL_VERSION__=300 -nostdinc -isystem tests/metal/shim -Wall -Wextra -Werror -Wdouble-promotion \
        -Wno-unknown-pragmas -Wno-unknown-attributes -Wno-unused-parameter -Wno-unused-function -Wno-pass-failed "$@" "$file.cc"
}

# ---- words that may not be there, and what must be

lacks() { # FILE PATTERN
    ! grep -nE "$2" "$1"
}
# A pointer without an address space before its type: Metal has no such thing.
pointers_have_spaces() { # FILE
    grep -nE '(DEV|CON|SHM|THR|WGT)  *(DEV|CON|SHM|THR|WGT) ' "$1" && return 1 # two for one pointer: device T *thread *p is right
    types='(void|u8|i8|u16|i16|u32|i32|u64|float|w2|w4|half2|float2|struct [a-z_0-9]+)'
    ! sed -E "s/(DEV|CON|SHM|THR|WGT) (const )?$types (const )?[*&]/good/g" "$1" | grep -nE "(^|[^A-Za-z_0-9])$types (const )?\*"
}
begins_well() { # FILE
    [ "$(sed -n 1p "$1")" = "#define PS_METAL 1" ] && [ "$(sed -n 2p "$1")" = "#pragma METAL fp contract(off)" ]
}
# The highest [[buffer(n)]] of Metal is 30.
buffers_fit() { # FILE
    grep -oE 'ENTRY_BUF\([0-9]+, [0-9]+\)|buffer\([0-9]+\)' "$1" | grep -oE '[0-9]+' | awk '{ n++; if ($1 > 30) bad = 1 } END { exit bad || !n }'
}
literals_are_floats() { # FILE: 1.0 without its f is a double
    ! grep -nE '(^|[^A-Za-z_0-9.])[0-9]+\.[0-9]*(e[-+]?[0-9]+)?([^0-9fe.]|$)' "$1"
}
# No division by a number that is known at run time only.
divisions_are_constant() { # FILE
    code=$made
    if [ -z "$code" ]; then
        code=$tmp/text.ll
        msl "$1" -O1 -S -emit-llvm -o "$code" || return 1
    fi
    grep -q "define.*plainsong_product_1" "$code" && ! grep -nE ' (udiv|urem|sdiv|srem) (exact )?i[0-9]+ [^,]*, %' "$code"
}
made=${1:+$1/msl/run.ll}

holds "metal text: PS_METAL and no contraction come first" begins_well "$tmp/kernels.metal"
holds "metal text: parses, each pointer in its address space" msl "$tmp/kernels.metal" -fsyntax-only
holds "metal text: each pointer names its address space" pointers_have_spaces "$tmp/kernels.metal"
holds "metal text: no double" lacks "$tmp/kernels.metal" '(^|[^A-Za-z_0-9])(double|long long|goto|static const|thread_local|#include ")'
holds "metal text: no double among numbers" literals_are_floats "$tmp/kernels.metal"
holds "metal text: no MetalPerformanceShaders" lacks "$tmp/kernels.metal" 'MetalPerformance|MPS|mpp::'
holds "metal text: 31 buffers at most" buffers_fit "$tmp/kernels.metal"
holds "metal text: nothing is divided by what is not constant" divisions_are_constant "$tmp/kernels.metal"
no_shaders() {
    ! grep -rniE 'MetalPerformance(Shaders|Primitives)|MPSGraph' src include Makefile
}
holds "MetalPerformanceShaders is named nowhere" no_shaders

# ---- each look can fail

# planted OLD NEW COMMAND...: the text with OLD (a regular expression) replaced in one line does not pass.
planted() {
    old=$1 new=$2
    shift 2
    awk -v old="$old" -v new="$new" '!done && $0 ~ old { done = sub(old, new) } { print } END { exit !done }' "$tmp/kernels.metal" >"$tmp/planted.metal" ||
        { echo "the text has no: $old"; return 1; }
    ! "$@" "$tmp/planted.metal" $more
}
more=-fsyntax-only
holds "planted: another address space" planted 'DEV const u32 \*in = \(DEV const u32 \*\)b' 'SHM const u32 *in = (DEV const u32 *)b' msl
holds "planted: a thread's own address" planted 'SHM float \*sums = \(SHM float \*\)' 'SHM float *sums = (THR float *)' msl
holds "planted: a word of Metal for a name" planted 'u32 rest, each = ' 'u32 half, rest, each = ' msl
more=
holds "planted: a pointer in no address space" planted 'THR u32 \*rest' 'u32 *rest' pointers_have_spaces
holds "planted: a double" planted '0\.5f' '0.5' literals_are_floats
holds "planted: contraction" planted 'contract\(off\)' 'contract(fast)' begins_well
divided() {
    echo 'extern "C" void plainsong_product_1(unsigned *p) { p[0] = p[1] / p[2]; }' >"$tmp/divided.metal"
    made=
    ! divisions_are_constant "$tmp/divided.metal"
}
holds "planted: a division" divided

# ---- run: what the start-up self-test says where matrices lie in a SIMD group otherwise than is known

other_map() { # BUILD_DIR
    ! MSL_PLANT=map "$1/msl/test_gpu_selftest" >"$tmp/map" 2>&1 && grep -q "tile of unsigned by signed bytes, tile of signed bytes, tile of 16 signed bytes" "$tmp/map" &&
        ! grep -q "dot product" "$tmp/map"
}
if [ $# -gt 0 ]; then
    holds "planted: another element map: the self-test names the tiles" other_map "$1"
fi
exit $failed
