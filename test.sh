#!/bin/sh
# All tests. Installs what they need beyond run.sh (as root; else says what is missing), builds with warnings as errors:
#   release   gcc         every tests/test_*.c, the command line, the layers, the house
#   asan      gcc, clang  the same programs under AddressSanitizer and UndefinedBehaviorSanitizer, but for
#                         those that only repeat arithmetic (long ones under clang's only), and a fuzzer's short run
#   metal     gcc, clang  Apple's GPU kernel text: parsed, run on the emulator's fibers; the Metal backend over a fake Metal (tests/metal)
#   arm       gcc         for 64-bit Arm under qemu: arithmetic, NEON's kernels and the golden hashes (tests/arm)
#   sh test.sh            all
#   sh test.sh unit       the layers and tests/test_*.c of the release build; installs nothing (make check)
# Builds run one after the other, programs beside them as soon as theirs is there: two cores have work until the end.
# A line for each program, a failure's output behind it; the last line is "N passed, N failed". Status 1 when one failed.
set -u
cd "$(dirname "$0")" || exit 1
install_root=.
what=${1:-all}
counts=build/test
failed_early() {
    echo "$1"
    echo "0 passed, 1 failed"
    exit 1
}
case $what in
all | unit) ;;
*)
    echo "no such part: $what; expected unit, or nothing for all" >&2
    exit 2
    ;;
esac
trap 'echo interrupted; exit 130' INT
begin=$(date +%s)

if [ "$what" = all ]; then
    . tools/install.sh
    install_needs test || failed_early "FAIL the tests' needs could not be installed"
fi
rm -rf "$counts"
mkdir -p "$counts" || exit 1

# What the tests say; stdout of a list of programs is the list.
exec 3>&1

# build LABEL MAKE_ARGS...: one case, counted like a program's. Behind the programs that run beside it: theirs is what is timed.
build() {
    label=$1
    shift
    start=$(date +%s)
    if nice -n 5 make -s -j2 WERROR=1 "$@" >"$counts/$label.log" 2>&1 </dev/null; then
        echo "1 0" >"$counts/$label.count"
        printf '%-4s %-34s %4d passed  %d s\n' ok "$label" 1 $(($(date +%s) - start)) >&3
    else
        echo "0 1" >"$counts/$label.count"
        {
            printf '%-4s %-34s    0 passed, 1 failed  %d s\n' FAIL "$label" $(($(date +%s) - start))
            grep -E 'error|warning' "$counts/$label.log" | head -n 20 | cut -c 1-300 | sed 's/^/     /'
            tail -n 20 "$counts/$label.log" | cut -c 1-300 | sed 's/^/     | /'
        } >"$counts/$label.said"
        cat "$counts/$label.said" >&3
        return 1
    fi
}

# Lines "LABEL COMMAND..." on stdin as they come, three at a time: most programs use one core, some wait.
programs() {
    xargs -P 3 -L 1 sh tools/program.sh "$counts"
}

# Those of the Metal backend are of the metal build.
unit_tests=$(for c in tests/test_*.c; do t=${c#tests/}; echo "${t%.c}"; done | grep -v '^test_metal')

# The longest first.
long_tests="test_gpu_order test_gpu_attend test_gpu_golden test_arch test_gpu_device test_template test_token test_gpu_products"
release_programs() {
    if [ "$what" = all ]; then
        echo "cuda-plugin sh tests/test_cuda_plugin.sh build/release"
        for part in raw company clients; do
            echo "serve-$part sh tests/serve/run.sh build/release/plainsong $part"
        done
    fi
    for test in $long_tests; do
        echo "$test build/release/tests/$test"
    done
    if [ "$what" = all ]; then
        echo "verify-emu sh tests/verify/emu.sh build/release/plainsong"
        echo "macos-compile sh tests/macos/compile.sh"
        echo "cli sh tests/cli/run.sh build/release/plainsong"
        echo "cuda sh tests/test_cuda.sh build/release"
        echo "page sh tests/serve/page.sh build/release/plainsong"
        [ -f tests/synthetic.sh ] && echo "synthetic sh tests/synthetic.sh build/release/plainsong"
        echo "metal-macho sh tests/metal/macho.sh"
        echo "house sh tests/house.sh"
        echo "macos-packaging sh tests/macos/packaging.sh"
        echo "api sh tests/api.sh build/release"
    fi
    echo "layers sh tools/layers.sh build/release"
    for test in $unit_tests; do
        case " $long_tests " in
        *" $test "*) ;;
        *) echo "$test build/release/tests/$test" ;;
        esac
    done
}

# What is left out under the sanitizers is said at the end.
too_long="test_oracle test_golden test_gpu_golden test_gpu_order"
uncounted="test_alloc"
# Under clang's alone, which is the quicker one.
once="test_arch test_gpu_attend test_gpu_device test_gpu_products test_gpu_rows test_products test_template test_token"
sanitized_programs() { # SUFFIX of the folder: "" or -clang
    leave="$too_long $uncounted"
    [ "$1$made" != " clang" ] || leave="$leave $once"
    for test in $unit_tests; do
        case " $leave " in
        *" $test "*) ;;
        *) echo "asan$1-$test build/asan$1/tests/$test" ;;
        esac
    done
    echo "asan$1-plainsong sh tests/sanitized.sh build/asan$1/plainsong build/release/plainsong"
}

sanitized_server() { # raw takes a minute and a half there
    for part in clients company; do
        echo "asan-serve-$part env COMPANY_S=8 sh tests/serve/run.sh build/asan/plainsong $part"
    done
}

# The longest first.
arm_programs() {
    for test in test_golden test_products test_attend test_rows test_exact test_emu; do
        echo "arm-$test qemu-aarch64 -cpu max build/arm/bare/$test"
    done
    echo "arm-processors sh tests/arm/run.sh build/arm/bare"
}

# Apple's kernel text, looked at and run on the emulator (docs/gpu.md, Metal).
metal_text_programs() {
    for test in products few attend rows router selftest; do
        echo "metal-text-$test build/metal/msl/test_gpu_$test"
    done
    echo "metal-text sh tests/metal/msl.sh build/metal"
    echo "metal-shm build/metal/tests/test_gpu_shm"
}

# The Metal backend over a fake Metal.
metal_programs() {
    echo "metal-product sh tests/metal/product.sh build/metal/plainsong"
    echo "metal-plant sh tests/metal/plant.sh build/metal"
    echo "test_metal_host build/metal/tests/test_metal_host"
}

# One build after the other; the programs of those that are done run meanwhile. The Metal build, which nobody installs, has the emulator of
# GPUs compiled for this machine; for qemu it is compiled quickly: little of it is run there.
everything() {
    build release CC=gcc all tests && release_programs
    [ "$what" = all ] || return 0
    made=
    binaries=build/release/plainsong
    # clang's first: its programs are the longer ones.
    build asan-clang CC=clang CONFIG=asan all tests && made="$made clang" && binaries="$binaries build/asan-clang/plainsong" &&
        sanitized_programs -clang && echo "fuzz sh tests/fuzz/run.sh"
    build asan CC=gcc CONFIG=asan all tests && binaries="$binaries build/asan/plainsong" && sanitized_programs "" && sanitized_server
    echo "verify sh tests/verify/quick.sh $binaries"
    build metal-msl CC=gcc EMU_FLAGS=-march=native METAL=fake B=build/metal msl build/metal/tests/test_gpu_shm && metal_text_programs
    build metal CC=gcc EMU_FLAGS=-march=native METAL=fake B=build/metal build/metal/plainsong build/metal/tests/test_metal_host && metal_programs
    case $(uname -m) in
    aarch64 | arm64) ;;
    *) build arm CC=aarch64-linux-gnu-gcc B=build/arm LDFLAGS=-static FLAGS_gpu=-O1 bare && arm_programs ;;
    esac
}

UBSAN_OPTIONS=print_stacktrace=1
export UBSAN_OPTIONS
everything | programs 3>&-
if [ "$what" = all ]; then
    case $(uname -m) in
    aarch64 | arm64) echo "     not under qemu: this machine is an Arm itself, the release build's tests ran on it" ;;
    esac
    echo "     not under the sanitizers: $too_long (minutes of arithmetic; test_products, test_rows and"
    echo "     test_attend have each operation, verify whole answers), $uncounted (counts calls of malloc, which is the sanitizer's there)"
    echo "     under clang's only: $once"
fi

echo "$(($(date +%s) - begin)) s"
awk '{ passed += $1; failed += $2 } END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 || !passed }' \
    "$counts"/*.count
