#!/bin/sh
# All of src/ compiled for arm64 macOS, on a machine without a Mac SDK: to Mach-O objects, with warnings as errors (the
# tests: looked at, without objects), against tests/macos/include, which declares what macOS has and nothing that it has
# not (read its README.md).
#   sh tests/macos/compile.sh [BUILD_DIR]     from the tree's root; needs clang and the four libraries' headers, and bf16.sh the release build
# Prints "ok NAME" or "not ok NAME: why". Also: what no object defines is declared by macOS or by a library; and uses of
# what macOS does not have, planted one by one, are refused. Last bf16.sh, with assembly that was made on the way.
set -u
build=${1:-build/macos}
headers=$build/include
status=0
said() { # STATUS NAME WHY
    if [ "$1" -eq 0 ]; then
        echo "ok $2"
    else
        echo "not ok $2: $3"
        status=1
    fi
}
if ! command -v clang >/dev/null; then
    echo "skipped macos-compile: no clang here"
    exec sh tests/macos/bf16.sh build/release
fi

# The libraries' headers alone: beside them lie the C library's of this system.
mkdir -p "$headers" || exit 1
for header in jansson.h jansson_config.h pcre2.h utf8proc.h microhttpd.h; do
    from=$(printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <stdint.h>\n#include <%s>\n' "$header" |
        clang -E -x c - 2>/dev/null | sed -n "s|^# [0-9]* \"\(.*/$header\)\".*|\1|p" | head -n 1)
    [ -f "$from" ] || { echo "not ok macos-compile: $header is not found"; exit 1; }
    ln -sf "$from" "$headers/$header"
done
target="clang -target arm64-apple-macos14 -nostdinc -isystem $(clang -print-resource-dir)/include"
target="$target -isystem $PWD/tests/macos/include -isystem $PWD/$headers"

# NEON's as they ship, by way of their assembly, which bf16.sh reads; the others without optimization.
rm -rf "$build/kernel"
cat >"$build/cc" <<END
#!/bin/sh
case " \$* " in *" -c "*) ;; *) exec $target "\$@" ;; esac
for out; do :; done
$target "\$@" -g0 -S -o "\${out%.o}.s" && $target -march=armv8.2-a+dotprod+i8mm -c -o "\$out" "\${out%.o}.s"
END
chmod +x "$build/cc"
neon="$build/kernel/neon.o $build/kernel/neon_dotprod.o $build/kernel/neon_i8mm.o"
make -s -k -j2 WERROR=1 METAL=native CC="$build/cc" B="$build" $neon >"$build/log" 2>&1
optimized=$?
make -s -k -j2 WERROR=1 CONFIG=debug METAL=native CC="$target" B="$build" objects >>"$build/log" 2>&1 && [ $optimized -eq 0 ]
said $? "src compiles for arm64 macOS" "$(grep -E 'error:' "$build/log" | head -n 5 | tr '\n' ' ')"

# Names: a symbol table of Mach-O is read by hand, since binutils knows ELF only.
python3 - "$build" >"$build/names" <<'END'
import pathlib, re, struct, sys

build = pathlib.Path(sys.argv[1])
defined, wanted = set(), {}
for path in sorted(build.rglob("*.o")):
    data = path.read_bytes()
    magic, cpu, _, kind, n_commands = struct.unpack_from("<5I", data)
    if (magic, cpu, kind) != (0xFEEDFACF, 0x0100000C, 1):  # 64 bits, arm64, an object
        print("%s is no Mach-O object for arm64" % path)
        continue
    at = 32
    for _ in range(n_commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command == 2:  # LC_SYMTAB
            symbols, n, names, _ = struct.unpack_from("<4I", data, at + 8)
            for i in range(n):
                name, kind, _, _, value = struct.unpack_from("<IBBHQ", data, symbols + 16 * i)
                text = data[names + name : data.index(b"\0", names + name)].decode()
                if kind & 0x0E:
                    defined.add(text)
                elif kind & 1:
                    defined.add(text) if value else wanted.setdefault(text, path.name)
        at += size
known = set()
for folder in ("tests/macos/include", build / "include"):
    for header in pathlib.Path(folder).rglob("*.h"):
        known |= set(re.findall(r"\w+", header.read_text(errors="replace")))
# The Metal host reads no header of Apple's: its own declares the Objective-C run time.
for header in pathlib.Path("src/device").glob("metal_*.h"):
    known |= set(re.findall(r"\b(objc_\w+|sel_\w+|class_\w+|object_\w+|MTL\w+)\(", header.read_text()))
# What the compiler itself calls: memory, integers wider than registers, the guard of stacks.
known |= {"memset_pattern16", "bzero", "__udivti3", "__umodti3", "__stack_chk_fail", "__stack_chk_guard"}
for name in sorted(set(wanted) - defined):
    plain = name[1:]
    if plain not in known and not (plain.startswith("pcre2_") and plain.endswith("_8")):
        print("%s, wanted by %s, is nobody's" % (plain, wanted[name]))
if len(defined) < 500:
    print("only %d names are defined" % len(defined))
END
said $? "Mach-O symbol tables are read" "see $build/names"
[ ! -s "$build/names" ]
said $? "every name is an object's, macOS's or a library's" "$(head -n 5 "$build/names" | tr '\n' ' ')"

# The tests, which `make check` builds on a Mac, where cmocka's header is.
cmocka=$(for header in stdarg stddef setjmp stdint cmocka; do echo "#include <$header.h>"; done |
    clang -E -x c - 2>/dev/null | sed -n 's|^# [0-9]* "\(.*/cmocka.h\)".*|\1|p' | head -n 1)
if [ -f "$cmocka" ]; then
    ln -sf "$cmocka" "$headers/cmocka.h"
    for test in tests/test_*.c; do
        case $test in tests/test_metal*) continue ;; esac # on the fake Metal, which is for Linux
        $target -std=c11 -D_GNU_SOURCE -DPS_METAL=1 -Isrc -Iinclude "-I$build/gen" -Itests \
            -Wall -Wextra -Werror -fsyntax-only "$test"
    done >"$build/log" 2>&1
    ! grep -q 'error:' "$build/log"
    said $? "tests/test_*.c compile for arm64 macOS" "$(grep -E 'error:' "$build/log" | head -n 5 | tr '\n' ' ')"
else
    echo "skipped macos-compile-tests: no cmocka here"
fi

# Each line is a whole program that Linux would take.
planted=$build/planted.c
refused() { # NAME HEADER BODY
    printf '#include <stdlib.h>\n#include <%s>\nint main(void)\n{\n    %s\n}\n' "$2" "$3" >"$planted"
    if $target -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only "$planted" >"$build/log" 2>&1; then
        said 1 "refused: $1" "it compiles"
    else
        grep -qE "$1|'$2' file not found" "$build/log"
        said $? "refused: $1" "for another reason: $(head -n 1 "$build/log")"
    fi
}
refused sigtimedwait signal.h 'sigset_t s; sigemptyset(&s); return sigtimedwait(&s, NULL, NULL);'
refused epoll_create1 sys/epoll.h 'return epoll_create1(0);'
refused eventfd sys/eventfd.h 'return eventfd(0, 0);'
refused memfd_create sys/mman.h 'return memfd_create("x", 0);'
refused mremap sys/mman.h 'return mremap(NULL, 1, 2, 0) == MAP_FAILED;'
refused MAP_POPULATE sys/mman.h 'return mmap(NULL, 1, PROT_READ, MAP_PRIVATE | MAP_POPULATE, 0, 0) == MAP_FAILED;'
refused posix_fadvise fcntl.h 'return posix_fadvise(0, 0, 0, 4);'
refused pipe2 unistd.h 'int p[2]; return pipe2(p, 0);'
refused accept4 sys/socket.h 'return accept4(0, NULL, NULL, 0);'
refused SOCK_CLOEXEC sys/socket.h 'return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);'
refused sched_getaffinity sched.h 'return sched_getaffinity(0, 0, NULL);'
refused pthread_condattr_setclock pthread.h 'pthread_condattr_t a; return pthread_condattr_setclock(&a, 6);'
refused malloc_trim malloc.h 'return malloc_trim(0);'
refused prctl sys/prctl.h 'return prctl(15, "x");'
refused getrandom sys/random.h 'char c; return getrandom(&c, 1, 0) != 1;'
refused st_mtim sys/stat.h 'struct stat s = {0}; return s.st_mtim.tv_sec != 0;'
refused strchrnul string.h 'return *strchrnul("x", 0);'
printf '#include <stdio.h>\n#include <stdint.h>\nint main(void) { return printf("%%lu", (uint64_t)1); }\n' >"$planted"
! $target -std=c11 -Wall -Wextra -Werror -fsyntax-only "$planted" >"$build/log" 2>&1 && grep -q Wformat "$build/log"
said $? "refused: %lu for 64 bits, which are long long there" "it compiles"

sh tests/macos/bf16.sh build/release "$build"/kernel/neon*.s || status=1
exit $status
