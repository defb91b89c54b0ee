#!/bin/sh
# bf16 weights are widened by an integer shift (a bfloat16 is a float's upper half) and multiplied as floats: what M1 and M2 lack, and
# what rounds differently where it is there, is used nowhere. Looked for in the kernels' text, in the x86-64 objects
# and in the assembly for Apple's chips. That the values are right: test_exact (all 65,536 patterns, a frozen hash), test_arch (a
# bf16 file gives the f32 file's bits), test_products and test_gpu_products (memcmp).
#   sh tests/macos/bf16.sh BUILD_DIR [ASSEMBLY...]   from the tree's root; BUILD_DIR has kernel/*.o; ASSEMBLY: NEON's, of compile.sh, which runs this
# Prints "ok NAME", "not ok NAME: why" or "skipped NAME: why".
set -u
build=$1
shift
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
status=0
said() { # STATUS NAME
    if [ "$1" -eq 0 ]; then
        echo "ok $2"
    else
        head -n 5 "$tmp/found"
        echo "not ok $2: its lines are above"
        status=1
    fi
}

# Types and intrinsics of C, CUDA and Metal; then instructions of x86-64, of Arm and of NVIDIA's PTX.
words='\b(bfloat|bfloat[248]|__bf16|__nv_bfloat16[2]?|nv_bfloat16|bfloat16x[48]_t|bfloat16_t|simdgroup_bfloat8x8)\b'
words="$words|_mm(256|512)?_[a-z0-9_]*(pbh|bf16)|\\bv(bf|cvt|cvtq|cvth)[a-z0-9_]*_bf16|\\bvbf[a-z0-9_]*_f32|vreinterpretq?_bf16"
orders='\b(vdpbf16ps|vcvtne2?ps2bf16|vcvtneps2bf16|tdpbf16ps|bfdot|bfmmla|bfml?al[bt]|bfcvtn?2?)\b|\.bf16'

no_words() { # FILE...
    ! grep -nE "$words|$orders" "$@" >"$tmp/found"
}
no_words src/base/exact.h src/gpu/*.h src/kernel/*.[ch] src/device/*.c src/device/*.h
said $? "no kernel names a bfloat16 type or intrinsic"
noticed() { # LINE
    echo "$1" >"$tmp/planted.h"
    ! no_words "$tmp/planted.h"
}
noticed 'acc = _mm512_dpbf16_ps(acc, a, b);' && noticed 'bfloat x = 1;' && noticed 'r = vbfdotq_f32(r, a, b);' &&
    noticed 'device const bfloat4 *w' && noticed '__nv_bfloat16 h;' && noticed 'simdgroup_bfloat8x8 m;' &&
    noticed 'mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32'
said $? "planted uses are noticed"

if [ "$(uname -m)" = x86_64 ] && ls "$build"/kernel/avx512vnni.o >/dev/null 2>&1; then
    for object in "$build"/kernel/*.o; do
        objdump -d --no-show-raw-insn "$object" || echo "objdump: no_such .bf16"
    done >"$tmp/code" 2>/dev/null
    [ "$(wc -l <"$tmp/code")" -gt 10000 ] && ! grep -E "$orders" "$tmp/code" >"$tmp/found"
    said $? "no object of the CPU's kernels has a bfloat16 instruction"
else
    echo "skipped bf16-objects: no x86-64 kernels in $build"
fi

# As the Makefile compiles them for a Mac.
if [ $# -eq 0 ]; then
    echo "skipped bf16-neon: no assembly is given"
    exit $status
fi
[ $# -eq 3 ] && cat "$@" >"$tmp/code" && grep -q fmla "$tmp/code" && ! grep -E "$orders" "$tmp/code" >"$tmp/found"
said $? "no NEON body for Apple's chips has a bfloat16 instruction"
exit $status
