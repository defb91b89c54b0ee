#!/bin/sh
# The tokenizer against Hugging Face's own library (npm: tokenizers), 4,000 random strings per pre-tokenizer.
#   tests/diff-tokenizers/run.sh [SEED]            prints "PRE: 4000 strings, N differ"; exits 1 when N > 0
#   tests/diff-tokenizers/run.sh --freeze          writes tests/oracle/pre/ anew (300 strings each)
# Needs node and npm; the package goes to a temporary folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" tokenizers@0.23.2 >"$work/npm.log" 2>&1 ||
    { cat "$work/npm.log" >&2; exit 1; }
export NODE_PATH="$work/node_modules"
if [ "${1:-}" = --freeze ]; then
    node "$here/make.js" tests/oracle/pre 300 1
    exit
fi
test=${TEST_TOKEN:-build/release/tests/test_token}
[ -n "${TEST_TOKEN:-}" ] || make -s "$test"
node "$here/make.js" "$work/cases" 4000 "${1:-2}"
"$test" "$work"/cases/*.json
