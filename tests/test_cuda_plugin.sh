#!/bin/sh
# The CUDA plug-in as far as a machine without a GPU shows it: that it builds, what it links, and that one line says there is no GPU. Skipped
# where nvcc is absent. How it is found, and GPUs that fail: test_cuda.sh.
#   sh tests/test_cuda_plugin.sh BUILD_DIR         (build/release) from the tree's root
# Prints "ok NAME" or "not ok NAME: why".
set -u
build=$1
plugin=$build/libplainsong-cuda.so
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "skipped the plug-in itself: there is no nvcc"
    exit 0
fi
. tests/holds.sh

# As where nvcc on the PATH is a script in a folder of its own: what belongs to it must be asked of it.
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
printf '#!/bin/sh\nexec %s "$@"\n' "$nvcc" >"$tmp/nvcc"
chmod +x "$tmp/nvcc"
holds "make cuda" make -s -j2 WERROR=1 CC=gcc NVCC="$tmp/nvcc" B="$build" cuda
links_c_only() {
    ! readelf -d "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux[-_a-z0-9]*)[.]so'
}
holds "the plug-in links neither cuBLAS nor cuDNN, nor anything but the C library" links_c_only
two_symbols() {
    nm -D --defined-only "$plugin" | awk '{ print $3 }' | LC_ALL=C sort >"$tmp/symbols"
    printf 'plainsong_cuda_abi\nplainsong_cuda_backend\n' | diff - "$tmp/symbols"
}
holds "the plug-in shows two symbols" two_symbols
run_cuda() { # PROGRAM
    "$1" run -m models/plainsong-tiny-q4_0.gguf -p hi -n 2 --device cuda
}
unset PLAINSONG_CUDA
if nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "skipped no GPU: this machine has one"
else
    holds "no GPU: one line says so" refused "--device cuda: " run_cuda "$build/plainsong"
fi
exit $failed
