#!/bin/sh
# Who may include whom (docs/architecture.md, Layout), and what else holds for the tree as a whole:
#   - exit() in src/cli/main.c only           - a file name occurs once
#   - no file over 800 lines                  - no mutable variable outside a function
#   sh tools/layers.sh [BUILD_DIR]
# The last is read from the objects under BUILD_DIR (build/release); without one it is not looked at, and said so.
# Prints "ok RULE" or "not ok RULE" for each, before that FILE:LINE of what breaks it; ends with 1 when one is broken.
set -u
cd "$(dirname "$0")/.." || exit 1
objects=${1:-}

# A folder, then what its files may include besides their own folder: a folder/ or one file.
rules='
base
model   base/
plan    base/ model/weights.h model/hparams.h
kernel  base/base.h base/exact.h base/dtype.h
gpu     base/exact.h base/pool.h
device  base/ model/ plan/ kernel/ gpu/
engine  base/ model/ plan/ device/device.h plainsong.h
serve   base/ model/token.h model/template.h model/prompt.h engine/ plainsong.h
cli     base/ model/ plan/ kernel/ gpu/ device/ engine/ serve/ plainsong.h
'

sources=$(find src include -name '*.[chm]' -o -name '*.cu' -o -name '*.metal' | LC_ALL=C sort)

# C without its comments and texts, each line behind FILE:LINE:, for the rules that read code.
code() { # FILE...
    awk '{
        if (FNR == 1) inside = 0
        line = $0; out = ""
        while (line != "") {
            if (inside) {
                at = index(line, "*/")
                if (!at) break
                line = substr(line, at + 2); inside = 0
            } else if (!match(line, /["\047]|\/[*\/]/)) {
                out = out line
                break
            } else {
                out = out substr(line, 1, RSTART - 1); line = substr(line, RSTART)
                if (substr(line, 1, 2) == "/*") {
                    inside = 1; line = substr(line, 3)
                } else if (substr(line, 1, 2) == "//") {
                    break
                } else if (match(line, /^"([^"\\]|\\.)*"/) || match(line, /^\047([^\047\\]|\\.)*\047/)) {
                    out = out "\"\""; line = substr(line, RLENGTH + 1)
                } else {
                    out = out substr(line, 1, 1); line = substr(line, 2)
                }
            }
        }
        print FILENAME ":" FNR ":" out
    }' "$@"
}

# verdict RULE, with the broken places on stdin
verdict() {
    broken=$(cat)
    if [ -z "$broken" ]; then
        echo "ok $1"
    else
        echo "$broken"
        echo "not ok $1"
    fi
}

checks() {
    grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' $sources /dev/null | awk -v rules="$rules" '
        BEGIN {
            n = split(rules, line, "\n")
            for (i = 1; i <= n; i++) {
                m = split(line[i], word, " ")
                if (m) known[word[1]] = 1
                for (k = 2; k <= m; k++) may[word[1], word[k]] = 1
            }
        }
        {
            split($0, part, ":")
            file = part[1]
            where = file ":" part[2]
            split($0, quoted, "\"")
            wanted = quoted[2]
            split(file, path, "/")
            from = path[2]
            to = wanted ~ "/" ? substr(wanted, 1, index(wanted, "/")) : wanted
            if (path[1] == "include")
                print where ": includes \"" wanted "\", but the public header stands alone"
            else if (!(from in known))
                print where ": the folder src/" from " is not in the table of tools/layers.sh"
            else if (to == from "/" || (from, to) in may || (from, wanted) in may)
                next
            else if ((from == "model" && wanted == "worker_py.h") || (from == "serve" && wanted == "page_html.h") ||
                     (from == "device" && wanted == "metal_text.h"))
                next # made by the Makefile from worker.py, web/index.html and the kernels
            else
                print where ": src/" from " may not include \"" wanted "\""
        }' | verdict "includes point up the table"

    code $(echo "$sources" | grep -vx src/cli/main.c) | grep -E '[^_[:alnum:]]_?exit[[:space:]]*\(' | verdict "exit() in main.c only"

    for file in $sources; do
        echo "${file##*/} $file"
    done | awk '{ n[$1]++; all[$1] = all[$1] " " $2 } END { for (f in n) if (n[f] > 1) print "one name, two files:" all[f] }' |
        verdict "file names are unique"

    awk 'FNR == 801 { print FILENAME ":" FNR ": over 800 lines" }' $sources | verdict "no file over 800 lines"

    if [ -z "$objects" ]; then
        echo "no folder of objects given: mutable variables are not looked for"
    elif [ -z "$(find "$objects" -name '*.o' 2>/dev/null)" ]; then
        echo "$objects: no objects" | verdict "no mutable variable outside a function"
    else
        # A symbol's line: value, flags (7 characters, maybe with spaces), section, size, name; tables of pointers are
        # in .data.rel.ro and const.
        find "$objects" -name '*.o' ! -path '*/tests/*' | LC_ALL=C sort | xargs objdump -t |
            sed -n -e 's/^\(.*\):[[:space:]]*file format .*/object \1/p' \
                -e 's/^[0-9a-f]* .......[[:space:]]*\([^[:space:]]*\)[[:space:]][[:space:]]*[0-9a-f]* \(.*\)$/\1 \2/p' |
            awk '$1 == "object" { object = substr($0, 8); next }
                ($1 ~ /^\.(bss|data|tbss|tdata)($|\.)/ && $1 !~ /^\.data\.rel\.ro/ || $1 == "*COM*") &&
                    $2 !~ /^\./ { print object ": " $2 " in " $1 }' |
            verdict "no mutable variable outside a function"
    fi
}

result=$(checks)
echo "$result"
! echo "$result" | grep -q '^not ok '
