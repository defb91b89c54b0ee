#!/bin/sh
# The library as others see it: installed, found by pkg-config, linked both ways, showing plainsong.h's names only.
# usage: sh tests/api.sh BUILD_FOLDER
set -u
build=${1:?usage: sh tests/api.sh BUILD_FOLDER}
cd "$(dirname "$0")/.." || exit 1
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT INT TERM
failed=0

check() { # name, command...
    name=$1
    shift
    if "$@" >"$root/out" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name"
        sed 's/^/# /' "$root/out" | head -20
        failed=1
    fi
}

only_public() { # names on standard input, at least ten, each declared in plainsong.h
    n=0
    while read -r name; do
        n=$((n + 1))
        grep -q "\\b$name(" include/plainsong.h || { echo "$name is not in plainsong.h"; return 1; }
    done
    [ "$n" -ge 10 ] || { echo "only $n names"; return 1; }
}
shared_names() { nm -D --defined-only "$root/usr/lib/libplainsong.so" | awk '{print $3}' | only_public; }
static_names() { nm -g --defined-only "$root/usr/lib/libplainsong.a" | awk 'NF==3{print $3}' | only_public; }
all_there() { # every function of the header is in the library
    sed -n 's/^PS_API.*[ *]\(ps_[a-z_]*\)(.*/\1/p' include/plainsong.h | while read -r name; do
        nm -D --defined-only "$root/usr/lib/libplainsong.so" | grep -q " $name\$" || { echo "$name is missing"; exit 1; }
    done
}
flags() { PKG_CONFIG_PATH="$root/usr/lib/pkgconfig" pkg-config --define-variable=prefix="$root/usr" "$@" plainsong; }
build_shared() { # shellcheck disable=SC2046
    cc -Wall -Wextra -Werror -std=c11 examples/streams.c $(flags --cflags --libs) -o "$root/shared"
}
build_static() { # shellcheck disable=SC2046
    cc -Wall -Wextra -Werror -std=c11 examples/streams.c $(flags --cflags) "$root/usr/lib/libplainsong.a" \
        $(flags --libs --static | sed 's/-lplainsong//') -o "$root/static"
}
cplusplus() { printf '#include <plainsong.h>\nint main() { return ps_version() == nullptr; }\n' >"$root/a.cc" && clang -x c++ -std=c++14 -Wall -Werror -Iinclude -fsyntax-only "$root/a.cc"; }
run_both() {
    LD_LIBRARY_PATH="$root/usr/lib" "$root/shared" models/plainsong-tiny-q4_0.gguf "Once, in the village" "There are many tales" >"$root/a" &&
        "$root/static" models/plainsong-tiny-q4_0.gguf "Once, in the village" "There are many tales" >"$root/b" &&
        cmp "$root/a" "$root/b" && [ "$(wc -l <"$root/a")" -ge 2 ]
}
refuses() { ! "$root/static" /nonexistent text 2>"$root/err" && grep -q nonexistent "$root/err"; }

check "make install" make -s "B=$build" "DESTDIR=$root" PREFIX=/usr install
check "the shared library shows only plainsong.h" shared_names
check "the static library shows only plainsong.h" static_names
check "every function of plainsong.h is there" all_there
check "the example builds against the shared library" build_shared
check "the example builds against the static library" build_static
check "the header is C++ too" cplusplus
check "both run and agree" run_both
check "a missing model is one line" refuses
check "make uninstall leaves no file" sh -c "make -s B=$build DESTDIR=$root PREFIX=/usr uninstall && [ -z \"\$(find $root/usr -type f -o -type l)\" ]"
exit $failed
