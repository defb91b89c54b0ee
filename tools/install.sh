# Installs what is missing; run.sh and test.sh read this file and call
#   install_needs run     a C compiler, make, five libraries, Python with jinja2 for chat templates
#   install_needs test    also cmocka, pkg-config, clang with its sanitizers, a compiler and an emulator for 64-bit Arm,
#                         node, npm and chromium for the server and its page
# What is there is asked of the machine itself (does this header compile, does this Python import jinja2), not of a list
# of packages. As root on Debian and its kin apt-get installs the rest; anyone else is shown the one line to run.
# Lists of names are variables without quotes, so that they become words.
# shellcheck shell=sh disable=SC2086,SC2154

needs_header() { # HEADER
    printf '#include <stddef.h>\n#include <stdint.h>\n%s\n#include <%s>\n' "${2:-}" "$1" | gcc $CFLAGS -E - >/dev/null 2>&1
}

needs_sanitizers() { # COMPILER
    probe=$(mktemp -d) || return 1
    echo 'int main(void) { return 0; }' >"$probe/main.c"
    "$1" -fsanitize=address,undefined "$probe/main.c" -o "$probe/main" >/dev/null 2>&1 && "$probe/main"
    status=$?
    rm -rf "$probe"
    return $status
}

# Where the machine is no Arm itself, programs for one are compiled, linked with a static libc, and emulated.
needs_arm() { # sets $missing
    command -v aarch64-linux-gnu-gcc >/dev/null || missing="$missing gcc-aarch64-linux-gnu"
    [ -f "$(aarch64-linux-gnu-gcc -print-file-name=libc.a 2>/dev/null)" ] || missing="$missing libc6-dev-arm64-cross"
    command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
}

needs_jinja2() {
    for python in "$(command -v python3)" /usr/bin/python3 "$install_venv/bin/python3"; do
        [ -x "$python" ] && "$python" -I -c 'import jinja2; assert jinja2.__version__.split(".") >= ["3", "1"]' \
            >/dev/null 2>&1 && return 0
    done
    return 1
}

# Sets $missing to names of Debian packages.
find_missing() { # run|test
    missing=
    command -v gcc >/dev/null || missing="$missing gcc"
    needs_header stdlib.h || missing="$missing libc6-dev"
    command -v make >/dev/null || missing="$missing make"
    needs_header jansson.h || missing="$missing libjansson-dev"
    needs_header pcre2.h '#define PCRE2_CODE_UNIT_WIDTH 8' || missing="$missing libpcre2-dev"
    needs_header utf8proc.h || missing="$missing libutf8proc-dev"
    needs_header microhttpd.h || missing="$missing libmicrohttpd-dev"
    needs_jinja2 || missing="$missing python3-jinja2"
    if [ "$1" = test ]; then
        command -v python3 >/dev/null || missing="$missing python3"
        command -v node >/dev/null || missing="$missing nodejs"
        command -v npm >/dev/null || missing="$missing npm"
        command -v chromium >/dev/null || missing="$missing chromium"
        command -v openssl >/dev/null || missing="$missing openssl"
        python3 -W ignore -c 'import jsonschema; jsonschema.Draft202012Validator' >/dev/null 2>&1 ||
            missing="$missing python3-jsonschema"
        needs_header cmocka.h '#include <stdarg.h>
#include <setjmp.h>' || missing="$missing libcmocka-dev"
        command -v pkg-config >/dev/null || missing="$missing pkg-config"
        command -v pkg-config >/dev/null || missing="$missing pkg-config"
        command -v clang >/dev/null || missing="$missing clang"
        needs_sanitizers clang || missing="$missing $(clang_runtime)"
        needs_sanitizers gcc || missing="$missing gcc"
        case $(uname -m) in aarch64 | arm64) ;; *) needs_arm ;; esac
    fi
    # A name that two checks gave stands once.
    missing=$(printf '%s\n' $missing | awk '!seen[$0]++' | tr '\n' ' ')
    missing=${missing% }
}

# clang's sanitizers are in a package named for its version, 14 on Debian 12.
clang_runtime() {
    version=$(apt-cache show clang 2>/dev/null | sed -n 's/^Depends:.*clang-\([0-9]*\).*/\1/p' | head -n 1)
    echo "libclang-rt-${version:-14}-dev"
}

install_with_apt() { # run|test
    log=$install_root/build/install.log
    mkdir -p "$install_root/build"
    echo "apt-get update" >&2
    apt-get update </dev/null >"$log" 2>&1 || echo "apt-get update failed; going on with the lists there are" >&2
    find_missing "$1" # names may depend on the lists
    echo "installing $missing (a minute; the log is build/install.log)" >&2
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends $missing \
        </dev/null >>"$log" 2>&1 && return 0
    tail -n 20 "$log" >&2
    echo "apt-get could not install $missing" >&2
    return 1
}

# Not tried: written from Homebrew's names, on no Mac. The command line tools bring cc, make and python3; the Makefile asks
# brew itself where headers and libraries are.
install_on_macos() { # run|test
    command -v brew >/dev/null || { echo "needs Homebrew (brew.sh), then: brew install jansson pcre2 utf8proc libmicrohttpd" >&2; return 1; }
    command -v make >/dev/null && xcode-select -p >/dev/null 2>&1 ||
        { echo "needs Apple's command line tools: xcode-select --install" >&2; return 1; }
    CFLAGS="$CFLAGS -I$(brew --prefix)/include" # for needs_header; not exported
    formulas=
    needs_header jansson.h || formulas="$formulas jansson"
    needs_header pcre2.h '#define PCRE2_CODE_UNIT_WIDTH 8' || formulas="$formulas pcre2"
    needs_header utf8proc.h || formulas="$formulas utf8proc"
    needs_header microhttpd.h || formulas="$formulas libmicrohttpd"
    if [ "$1" = test ]; then
        needs_header cmocka.h '#include <stdarg.h>
#include <setjmp.h>' || formulas="$formulas cmocka"
    fi
    if [ -n "$formulas" ]; then
        echo "brew install$formulas" >&2
        brew install $formulas >&2 || return 1
    fi
    if ! needs_jinja2; then
        echo "a virtual environment with jinja2 in $install_venv" >&2
        python3 -m venv "$install_venv" && "$install_venv/bin/pip" install --quiet 'jinja2>=3.1' || return 1
    fi
}

install_needs() { # run|test; the folder of the tree is $install_root
    install_venv=${XDG_DATA_HOME:-$HOME/.local/share}/plainsong/venv
    CFLAGS=${CFLAGS:-}
    if [ "$(uname -s)" = Darwin ]; then
        install_on_macos "$1"
        return
    fi
    find_missing "$1"
    [ -z "$missing" ] && return 0
    if ! command -v apt-get >/dev/null; then
        echo "missing, by their Debian names: $missing. There is no apt-get here: install them as your system does." >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "missing: $missing. As root:" >&2
        echo "apt-get install --no-install-recommends $missing" >&2
        return 1
    fi
    install_with_apt "$1" || return 1
    find_missing "$1"
    [ -z "$missing" ] && return 0
    echo "still missing after installing: $missing" >&2
    return 1
}
