#!/bin/sh
# The kernels as one text for Apple's compiler, on stdout: src/gpu/metal_entry.h with everything it includes in its
# place and once, the branches of other compilers and the comments left out. The rest of the preprocessing is Apple's.
# The text begins with what all of it stands under: PS_METAL, and no contraction (docs/numerics.md, rule 11).
#   sh tools/metal_text.sh > kernels.metal
set -eu
cd "$(dirname "$0")/../src"
cat <<'TEXT'
#define PS_METAL 1
#pragma METAL fp contract(off)
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
TEXT
awk -v first=gpu/metal_entry.h '
    # 1, 0: known where the text is made. -1: Apple finds out.
    function value(condition) {
        if (condition ~ /^ifndef PS_[A-Z_]*_H$/) return 1 # a file comes once anyway
        if (condition == "if defined(__CUDACC__)" || condition == "if !defined(__METAL_VERSION__)" || condition == "ifndef EX_FN") return 0
        if (condition == "elif defined(__METAL_VERSION__)") return 1
        return -1
    }

    function without_comments(line,    out, at) {
        out = ""
        while (line != "") {
            if (inside) {
                at = index(line, "*/")
                if (!at) return out
                line = substr(line, at + 2)
                inside = 0
            } else if (!(at = index(line, "/*"))) {
                return out line
            } else {
                out = out substr(line, 1, at - 1)
                line = substr(line, at + 2)
                inside = 1
            }
        }
        return out
    }

    # taken[depth]: 1 this part is read, 0 it is left out, 2 so are all that follow. own[depth]: the line itself is printed.
    function conditional(text,    known) {
        if (text ~ /^(if|ifdef|ifndef) /) {
            known = live() ? value(text) : 0
            depth++
            own[depth] = known < 0
            taken[depth] = known ? 1 : 0
            return own[depth]
        }
        if (depth == 0) fail("no if before " text)
        if (text ~ /^endif/) return own[depth--] && live()
        if (own[depth]) return live()
        if (taken[depth] != 0) taken[depth] = 2
        else if (text ~ /^else/) taken[depth] = 1
        else if (value(text) == 1) taken[depth] = 1
        else if (value(text) < 0) fail("unknown: " text)
        return 0
    }

    function live(    d) {
        for (d = 1; d <= depth; d++)
            if (taken[d] != 1) return 0
        return 1
    }

    function fail(why) {
        print "metal_text.sh: " why > "/dev/stderr"
        failed = 1
        exit 1
    }

    function put(file,    line, text, name, got) {
        if (file in seen) return
        seen[file] = 1
        while ((got = (getline line < file)) > 0) {
            line = without_comments(line)
            sub(/[ \t]+$/, "", line)
            if (line == "") continue
            text = line
            if (sub(/^[ \t]*#[ \t]*/, "", text) && text ~ /^(if|ifdef|ifndef|elif|else|endif)/) {
                if (!conditional(text)) continue
            } else if (!live() || line ~ /^#define PS_[A-Z_]*_H$/) {
                continue
            } else if (line ~ /^#include "/) {
                split(line, name, "\"")
                put(name[2])
                continue
            }
            print line
        }
        if (got < 0) fail("cannot read src/" file)
        close(file)
    }

    BEGIN {
        put(first)
        if (!failed && (depth || inside)) fail("an if or a comment without its end")
        exit failed
    }'
