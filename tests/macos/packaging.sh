#!/bin/sh
# packaging/ and .github/ on a machine that is no Mac: the form of each file, that what one names is there in another, and
# what the Makefile would do on a Mac (a dry run).
#   sh tests/macos/packaging.sh      from the tree's root
# Prints "ok NAME", "not ok NAME: why" or "skipped NAME: why".
set -u
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
status=0
holds() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$tmp/said" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name: $(tail -n 5 "$tmp/said" | tr '\n' ' ')"
        status=1
    fi
}

# ---- launchd: python's plistlib stands for plutil

# Filled in as packaging/README.md says, by its own lines.
filled() { # PLIST
    sed 's|PROGRAM|/opt/p/bin/plainsong|; s|MODEL|/models/m.gguf|; s|LOGFILE|/logs/p.log|; s|MEGABYTES|26000|' \
        "packaging/launchd/$1" >"$tmp/$1" || return 1
    python3 - "$tmp/$1" <<'END'
import plistlib, sys
with open(sys.argv[1], "rb") as f:
    p = plistlib.load(f)
label, words = p["Label"], p["ProgramArguments"]
assert sys.argv[1].endswith("/%s.plist" % label), label
assert words and all(type(w) is str and w and not w.isupper() for w in words), words
assert words[0].startswith("/") and p["RunAtLoad"] is True
if label == "plainsong.serve":
    assert p["ExitTimeOut"] > 30 and p["KeepAlive"] == {"SuccessfulExit": False}
    assert p["ProcessType"] == "Interactive"
    assert words[1] == "serve" and p["StandardErrorPath"].startswith("/")
known = {"Label", "ProgramArguments", "RunAtLoad", "KeepAlive", "ThrottleInterval", "ExitTimeOut", "ProcessType",
         "StandardErrorPath"}
assert set(p) <= known, set(p) - known
END
}
read_by_plistlib() { # a damaged one is not
    sed 's|</dict>||' packaging/launchd/plainsong.serve.plist >"$tmp/damaged"
    ! python3 -c 'import plistlib, sys; plistlib.load(open(sys.argv[1], "rb"))' "$tmp/damaged" 2>/dev/null
}
drains() { # launchd waits longer than the server does
    grep -q 'o->drain_s : 30' src/serve/serve.c
}
for plist in packaging/launchd/*.plist; do
    holds "launchd: ${plist##*/}" filled "${plist##*/}"
done
holds "launchd: a damaged plist is noticed" read_by_plistlib
holds "launchd: the server's drain is the 30 s that the plist counts on" drains

# ---- Homebrew

formula=packaging/homebrew/plainsong.rb
structure() { # every block that begins ends, and the class is named as the file
    awk '
        { line = $0; sub(/#[^{].*$/, "", line) }
        heredoc { if ($1 == "EOS") heredoc = 0; next }
        line ~ /<<~EOS/ { heredoc = 1 }
        line ~ /^ *(class|def|if|unless) / || line ~ / do( \|[^|]*\|)?$/ { depth++ }
        line ~ /^ *end$/ { if (--depth < 0) exit }
        END { if (depth) { print "blocks left open: " depth; exit 1 } }' "$1"
}
depends() { # on the libraries that tools/install.sh installs, no others but Python
    sed -n 's/^ *depends_on "\([a-z0-9]*\)"$/\1/p' $formula | LC_ALL=C sort >"$tmp/formula"
    sed -n 's/.*formulas="$formulas \([a-z0-9]*\)"$/\1/p' tools/install.sh | grep -v cmocka |
        LC_ALL=C sort >"$tmp/install"
    [ -s "$tmp/install" ] && diff "$tmp/formula" "$tmp/install"
}
placeholders() { # what is made up says so, until there is a release
    ! grep 'example.invalid\|0000000000' $formula | grep -v '^ *\(url\|sha256\|homepage\|head\) ' &&
        [ "$(grep -ci placeholder $formula)" -ge 3 ]
}
if command -v ruby >/dev/null; then
    holds "homebrew: ruby reads the formula" ruby -c $formula
else
    echo "skipped homebrew-syntax: no ruby here, the structure is looked at instead"
fi
holds "homebrew: blocks begin and end" structure $formula
open_block() {
    sed '$d' $formula >"$tmp/open.rb"
    ! structure "$tmp/open.rb"
}
holds "homebrew: an open block is noticed" open_block
holds "homebrew: it depends on what install.sh installs" depends
holds "homebrew: placeholders are named" placeholders

# ---- the workflow

workflow=.github/workflows/macos.yml
if python3 -c 'import yaml' 2>/dev/null; then
    parsed() {
        python3 - $workflow "$tmp" <<'END'
import sys, yaml
w = yaml.safe_load(open(sys.argv[1]))
assert (w.get("on") or w[True]) and w["permissions"] == {"contents": "read"}
n = 0
for name, job in w["jobs"].items():
    assert job["runs-on"] and job["timeout-minutes"] and job["steps"], name
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step), step
        if "run" in step:
            n += 1
            open("%s/step%d.sh" % (sys.argv[2], n), "w").write(step["run"].replace("${{ matrix.os }}", "macos-15"))
assert n >= 10, n
END
    }
    holds "workflow: it is YAML of the shape that runners read" parsed
    shells() {
        for step in "$tmp"/step*.sh; do
            sh -n "$step" || return 1
        done
    }
    holds "workflow: every step parses as shell" shells
else
    echo "skipped workflow-yaml: this Python has no yaml"
fi
holds "workflow: it says that it has not run" grep -q 'NOT YET RUN' $workflow
targets() { # of make, that workflow and formula name
    sed -n 's/^.*\(run: \|^ *\)make \(-j3 \)\{0,1\}\([a-z][-a-z]*\).*/\3/p' $workflow >"$tmp/targets"
    [ "$(wc -l <"$tmp/targets")" -ge 3 ] || return 1
    while read -r target; do
        grep -qE "^$target:" Makefile || { echo "no target $target"; return 1; }
    done <"$tmp/targets"
}
holds "workflow: the targets of make are there" targets

# ---- run.sh on a Mac: what install.sh would do, with stand-ins for the commands that it finds there

mkdir -p "$tmp/bin" "$tmp/home"
stand_in() { # NAME SCRIPT
    printf '#!/bin/sh\n%s\n' "$2" >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}
stand_in uname 'echo Darwin'
stand_in xcode-select 'exit 0'
stand_in gcc 'exit 1' # no header is found
stand_in brew "if [ \"\$1\" = --prefix ]; then echo /opt/homebrew; else echo \"brew \$*\" >>$tmp/did; fi"
stand_in python3 "echo \"python3 \$*\" >>$tmp/did; mkdir -p \"\$3/bin\"; cp $tmp/bin/pip \"\$3/bin/pip\""
stand_in pip "echo \"pip \$*\" >>$tmp/did"
cat >"$tmp/mac.sh" <<'END'
set -eu
. tools/install.sh
needs_jinja2() { return 1; }
install_root=.
install_needs "$1"
END
installs() { # run|test FORMULAS
    rm -f "$tmp/did"
    env -u XDG_DATA_HOME HOME="$tmp/home" PATH="$tmp/bin:$PATH" sh "$tmp/mac.sh" "$1" || return 1
    venv=$tmp/home/.local/share/plainsong/venv
    printf 'brew install %s\npython3 -m venv %s\npip install --quiet jinja2>=3.1\n' "$2" "$venv" | diff - "$tmp/did"
}
holds "run.sh: brew installs four libraries, pip jinja2 into an environment" installs run "jansson pcre2 utf8proc libmicrohttpd"
holds "run.sh: the tests need cmocka too" installs test "jansson pcre2 utf8proc libmicrohttpd cmocka"
stand_in xcode-select 'exit 2'
without_tools() {
    ! PATH="$tmp/bin:$PATH" sh "$tmp/mac.sh" run 2>"$tmp/line" && grep -q 'xcode-select --install' "$tmp/line" &&
        [ "$(wc -l <"$tmp/line")" -eq 1 ]
}
holds "run.sh: without the command line tools one line says so" without_tools

# ---- the Makefile on a Mac

if command -v clang >/dev/null; then
    make -n METAL=native CC="clang -target arm64-apple-macos14" B="$tmp/build" install PREFIX=/opt/p >"$tmp/dry" 2>&1
    has() { grep -qE -e "$1" "$tmp/dry" || { echo "nowhere: $1"; tail -n 3 "$tmp/dry"; return 1; }; }
    has_not() { ! grep -nE -e "$1" "$tmp/dry"; }
    holds "make: a dynamic library with a name for its loader" has '-dynamiclib -install_name @rpath/libplainsong.0.dylib'
    holds "make: it is installed under both names" has 'ln -sf libplainsong.0.dylib "/opt/p/lib/libplainsong.dylib"'
    holds "make: pkg-config gives the path to look in" has 's.@RPATH@.-Wl,-rpath,\$\{libdir\}'
    if grep -q -e '-framework Metal' Makefile; then
        holds "make: Metal's frameworks are linked" has '-o [^ ]*/plainsong .*-framework Metal .*-lobjc'
    else
        echo "skipped make-frameworks: the Makefile links no Metal yet"
    fi
    holds "make: NEON's kernels, each with its instructions" has 'march=armv8.2-a\+dotprod\+i8mm .*neon_i8mm'
    holds "make: nothing that Apple's linker and tools lack" has_not \
        'soname|exclude-libs|no-undefined|as-needed|objcopy|avx|libplainsong.so'
else
    echo "skipped make-dry-run: no clang here"
fi
old_make() { # Apple's is 3.81
    ! grep -nE '^[^#	]*(!=|::=)|\$\(file |^(\.ONESHELL|undefine|define [A-Za-z_]+ *=)|\$\(let |\$\(intcmp ' Makefile
}
holds "make: no word younger than 3.81" old_make
portable() { # of GNU's tools, in what runs on a Mac
    ! grep -nE 'sed -i|sed -r|readlink -f|cp -Lt?|grep -P|head -c|stat -c|date -d|xargs -r|mktemp --|realpath |nproc' \
        run.sh tools/install.sh tools/program.sh test.sh
}
holds "scripts: no option of GNU's tools alone in run.sh, test.sh and tools/" portable
exit $status
