#!/bin/sh
# The Metal backend's host compiles for a Mac: Mach-O objects for arm64 by clang, without an SDK and without any of its headers; and it asks the
# linker for what macOS has: two functions of libobjc's pools, three of its run time, one of Metal's, which may be missing.
#   sh tests/metal/macho.sh     from the tree's root
# Prints "ok NAME" or "not ok NAME: why".
set -u
command -v clang >/dev/null || { echo "skipped metal-macho: no clang here"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0

# What the C library gives to these files, in our words.
mkdir "$tmp/include" || exit 1
cat >"$tmp/include/string.h" <<'END'
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
size_t strlen(const char *);
size_t strcspn(const char *, const char *);
int strcmp(const char *, const char *);
char *strstr(const char *, const char *);
END
cat >"$tmp/include/stdlib.h" <<'END'
#include <stddef.h>
void free(void *);
END
cat >"$tmp/include/stdio.h" <<'END'
#include <stddef.h>
typedef struct file FILE;
int snprintf(char *, size_t, const char *, ...);
END
cat >"$tmp/include/math.h" <<'END'
float fmaf(float, float, float);
float sqrtf(float);
END

for file in src/device/dev_metal.c src/device/metal_*.c; do
    [ "$file" != src/device/metal_text.c ] || continue # data made by the build
    object=$tmp/$(basename "$file" .c).o
    if clang -target arm64-apple-macos14 -ffreestanding -nostdinc -isystem "$(clang -print-resource-dir)/include" -isystem "$tmp/include" \
        -std=c11 -Isrc -DPS_METAL=1 -O2 -Wall -Wextra -Wshadow -Wundef -Wstrict-prototypes -Werror -c "$file" -o "$object" 2>"$tmp/log" &&
        [ "$(od -An -tx4 -N8 "$object" | tr -d ' ')" = feedfacf0100000c ]; then
        echo "ok $file for arm64 macOS"
    else
        echo "not ok $file for arm64 macOS: $(grep -m 3 error "$tmp/log" | tr '\n' ' ')"
        failed=1
    fi
done
names=$(cat "$tmp"/*.o | tr '\0' '\n' | grep -aE '^_(objc_|sel_|MTL)[A-Za-z]*$' | sort -u | tr '\n' ' ')
if [ "$names" = "_MTLCreateSystemDefaultDevice _objc_autoreleasePoolPop _objc_autoreleasePoolPush _objc_getClass _objc_msgSend _sel_registerName " ]; then
    echo "ok Apple's names: $names"
else
    echo "not ok Apple's names: $names"
    failed=1
fi
exit $failed
