#!/bin/sh
# The server as its clients see it, over real sockets.
#   sh tests/serve/run.sh PLAINSONG            all three
#   sh tests/serve/run.sh PLAINSONG clients    the official clients of npm (clients.mjs), installed into build/serve-node
#   sh tests/serve/run.sh PLAINSONG raw        raw sockets: who may ask, odd timing, overload, leaving, life cycle (raw.py)
#   sh tests/serve/run.sh PLAINSONG company    16 clients at once with random cancels (company.py); COMPANY_S seconds (20)
# A line "ok NAME" or "not ok NAME: why" for each case; status 1 when one failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
plainsong=${1:?usage: sh tests/serve/run.sh PLAINSONG [clients|raw|company]}
what=${2:-all}
failed=0

clients() {
    modules=build/serve-node
    if ! cmp -s tests/serve/package.json "$modules/package.json" || [ ! -f "$modules/installed" ]; then
        rm -rf "$modules"
        mkdir -p "$modules"
        cp tests/serve/package.json "$modules/"
        if ! (cd "$modules" && npm install --no-audit --no-fund --loglevel=error) >"$modules/install.log" 2>&1; then
            echo "not ok the clients can be installed: npm install failed in $modules"
            sed 's/^/# /' "$modules/install.log" | tail -n 20
            return 1
        fi
        touch "$modules/installed"
    fi
    python3 tests/serve/clients.py "$plainsong" "$modules"
}

case $what in all | clients) clients || failed=1 ;; esac
case $what in all | raw) python3 tests/serve/raw.py "$plainsong" || failed=1 ;; esac
case $what in all | company) python3 tests/serve/company.py "$plainsong" --seconds "${COMPANY_S:-20}" || failed=1 ;; esac
exit $failed
