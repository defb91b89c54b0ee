#!/bin/sh
# The page at / in a real browser: Debian's chromium, driven by playwright-core from npm (kept in build/page), against two
# servers over plainsong-tiny, one of which wants a key. What it shows is in page.mjs.
# usage: sh tests/serve/page.sh PLAINSONG [FOLDER_FOR_SCREENSHOTS]
set -u
program=${1:?usage: sh tests/serve/page.sh PLAINSONG [FOLDER_FOR_SCREENSHOTS]}
cd "$(dirname "$0")/../.." || exit 1
shots=${2:-}
kept=build/page
version=1.58.0 # asks for node 18, which Debian 12 has
work=$(mktemp -d) || exit 1
servers=
end() {
    for pid in $servers; do
        kill "$pid" 2>/dev/null
    done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

stop() {
    echo "not ok $1"
    sed 's/^/# /' "$work/log" | tail -n 20
    exit 1
}

browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v "$name")
done
[ -n "$browser" ] || { echo "chromium is not installed" >"$work/log"; stop "a browser is there"; }
if ! grep -q "\"version\": \"$version\"" "$kept/node_modules/playwright-core/package.json" 2>/dev/null; then
    mkdir -p "$kept"
    npm install --no-save --no-audit --no-fund --prefix "$kept" "playwright-core@$version" >"$work/log" 2>&1 </dev/null ||
        stop "npm has playwright-core"
fi

# serve NAME ARGS...: starts a server on a free port; its address is in $work/NAME.at.
serve() {
    name=$1
    shift
    "$program" serve --port 0 "$@" >"$work/$name" 2>&1 </dev/null &
    pid=$!
    servers="$servers $pid"
    until sed -n 's/.*listening \(http:[^ ]*\).*/\1/p' "$work/$name" | grep . >"$work/$name.at"; do
        kill -0 "$pid" 2>/dev/null || { cp "$work/$name" "$work/log"; stop "a server starts"; }
        sleep 0.1
    done
}
echo 'plainsong-page-test-key' >"$work/keys"
chmod 600 "$work/keys"
serve open
serve keyed --api-key-file "$work/keys"

PLAYWRIGHT=$PWD/$kept/node_modules/playwright-core/index.mjs
export PLAYWRIGHT
node tests/serve/page.mjs "$browser" "$(cat "$work/open.at")" "$(cat "$work/keyed.at")" plainsong-page-test-key "$shots"
