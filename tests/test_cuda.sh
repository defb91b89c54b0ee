#!/bin/sh
# `--device cuda` as far as a machine without nvcc and GPU shows it: how the plug-in is found, what is said when it is not there, and, with one
# whose GPU is the emulator (fake_cuda.c), what is made of memory that is short and of a GPU that fails. The plug-in itself: test_cuda_plugin.sh.
#   sh tests/test_cuda.sh BUILD_DIR         (build/release) from the tree's root
# Prints "ok NAME" or "not ok NAME: why".
set -u
build=$1
. tests/holds.sh

run_cuda() { # PROGRAM
    "$1" run -m models/plainsong-tiny-q4_0.gguf -p hi -n 2 --device cuda
}

links_no_cuda() { # FILE
    ! readelf -d "$1" | grep NEEDED | grep -iE 'cuda|cublas|cudnn|nvidia|nvrtc'
}
for file in plainsong libplainsong.so; do
    holds "$file links no CUDA" links_no_cuda "$build/$file"
done

# ---- where it is looked for: a copy of the program alone, without the plug-in beside it

mkdir -p "$tmp/p/bin" "$tmp/p/lib"
cp "$build/plainsong" "$tmp/p/bin/"
unset PLAINSONG_CUDA
holds "not built: one line says so, and what builds it" refused "make cuda" run_cuda "$tmp/p/bin/plainsong"
holds "not built: verify says no more than that" refused "make cuda" \
    "$tmp/p/bin/plainsong" verify -m models/plainsong-tiny-q4_0.gguf --golden --device cuda
PLAINSONG_CUDA=$tmp/none.so
export PLAINSONG_CUDA
holds "PLAINSONG_CUDA names no file" refused "no such file" run_cuda "$tmp/p/bin/plainsong"
echo "not a library" >"$tmp/text.so"
PLAINSONG_CUDA=$tmp/text.so
holds "PLAINSONG_CUDA names another file" refused "text.so" run_cuda "$tmp/p/bin/plainsong"
holds "the loader's words follow the path once" refused "text.so: file too short" run_cuda "$tmp/p/bin/plainsong"
mkfifo "$tmp/pipe.so"
PLAINSONG_CUDA=$tmp/pipe.so
holds "PLAINSONG_CUDA names a pipe, which nobody writes to" refused "pipe.so: is not a file" timeout 60 "$tmp/p/bin/plainsong" run -p hi --device cuda \
    -m models/plainsong-tiny-q4_0.gguf
PLAINSONG_CUDA=$tmp
holds "PLAINSONG_CUDA names a folder" refused "is not a file" run_cuda "$tmp/p/bin/plainsong"
echo 'int nothing;' | cc -shared -x c -o "$tmp/other.so" -
PLAINSONG_CUDA=$tmp/other.so
holds "a library that is not ours" refused "not plainsong's" run_cuda "$tmp/p/bin/plainsong"
echo 'const unsigned plainsong_cuda_abi = 1; const void *plainsong_cuda_backend(void); const void *plainsong_cuda_backend(void) { return 0; }' |
    cc -shared -fPIC -x c -o "$tmp/p/lib/libplainsong-cuda.so" -
unset PLAINSONG_CUDA
holds "found in lib beside bin; another version is refused" refused "of another version" run_cuda "$tmp/p/bin/plainsong"
called_by_name() {
    (PATH=$tmp/p/bin:$PATH && export PATH && run_cuda plainsong)
}
holds "found by a program that was called by its name" refused "of another version" called_by_name

# ---- a plug-in whose GPU is the emulator

mkdir "$tmp/faults"
holds "fake_cuda.c compiles" cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -include "$build/gen/gpu_abi.h" -Isrc \
    -Iinclude -o "$tmp/fake.so" tests/fake_cuda.c "$build/internal.a" -lpcre2-8 -lutf8proc -ljansson -lm -pthread
if [ -f "$tmp/fake.so" ]; then
    FAKE_FAULTS=$tmp/faults
    export FAKE_FAULTS PLAINSONG_CUDA
    PLAINSONG_CUDA=fake.so
    by_its_name() {
        (cd "$tmp" && p/bin/plainsong run -m "$OLDPWD/models/plainsong-tiny-q4_0.gguf" -p hi -n 2 --device cuda)
    }
    holds "PLAINSONG_CUDA is a name without a slash: the file of the folder one is in" by_its_name
    PLAINSONG_CUDA=$tmp/fake.so
    touch "$tmp/faults/none"
    holds "a plug-in without a backend" refused "fake.so: gives no backend" run_cuda "$build/plainsong"
    rm "$tmp/faults/none"
    for call in memory open alloc upload prepare submit wait; do
        touch "$tmp/faults/$call"
        holds "$call fails" refused "CUDA: $call: the chip is on fire" run_cuda "$build/plainsong"
        rm "$tmp/faults/$call"
    done
    fits_as_named() { # BYTES OPTIONS...: refused with a setting; what the device takes with that is there (fake_cuda.c counts)
        FAKE_FREE=$1
        shift
        refused ": try --slots " "$build/plainsong" run -m models/plainsong-tiny-q4_0.gguf -p hi -n 2 --device cuda "$@" || return 1
        "$build/plainsong" run -m models/plainsong-tiny-q4_0.gguf -p hi -n 2 --device cuda $(sed 's/.*: try //' "$tmp/err")
    }
    export FAKE_FREE=
    holds "memory for a shorter context: it is named, and fits" fits_as_named 750000000 --slots 16 --ctx 4096
    holds "memory for fewer slots: it is named, and fits" fits_as_named 700000000 --slots 1000
    unset FAKE_FREE
    python3 tests/serve/device.py "$build/plainsong" "$tmp/fake.so" || failed=1
fi
exit $failed
