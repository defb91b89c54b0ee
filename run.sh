#!/bin/sh
# From a clone to a server: installs what is missing, builds build/release/plainsong, and serves.
#   sh run.sh                    the shipped model at http://127.0.0.1:8080: a page, and the API; Ctrl-C ends it
#   sh run.sh --port 0 ...       any options of plainsong serve
#   sh run.sh chat ...           any other command: run, chat, bench, ...; sh run.sh --help
#   sh run.sh build              only installs and builds
# Answers go to standard output, all else to standard error.
set -eu
root=$(cd "$(dirname "$0")" && pwd)
install_root=$root
. "$root/tools/install.sh"
install_needs run || exit 1

plainsong=$root/build/release/plainsong
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
[ -x "$plainsong" ] || echo "building build/release/plainsong (a minute or two)" >&2
make -C "$root" -s -j"$cores" build/release/plainsong >&2

case ${1:-} in
build) exit 0 ;;
serve) shift ;;
-h | --help | --version) exec "$plainsong" "$@" ;;
-* | "") ;;
*) exec "$plainsong" "$@" ;;
esac

# Passes the server's lines on; when it is ready, says where.
tell() {
    url='' told='' header=''
    case " $* " in *" --api-key-file"*) header=" -H 'Authorization: Bearer KEY'" ;; esac
    while IFS= read -r line; do
        printf '%s\n' "$line"
        case $told$line in
        told*) ;;
        *listening*http*)
            url=http${line##*http}
            url=${url%%\"*}
            ;;
        *"try another --port") echo "any free port: sh run.sh --port 0" ;;
        *ready*model*)
            told=told
            printf '\nthe page: %s/\n' "$url"
            printf "curl %s/v1/chat/completions%s -d '%s'\n" "$url" "$header" \
                '{"messages": [{"role": "user", "content": "Tell me a tale about a fox and a lantern."}]}'
            printf 'Ctrl-C ends it; docs/api.md says what it takes\n\n'
            ;;
        esac
    done
}
for option; do
    [ "$option" != --help ] && [ "$option" != -h ] || exec "$plainsong" serve --help
done
# The server becomes this process, so that signals and its exit status are its own; a reader beside it ends with it.
pipe=$(mktemp -d)
mkfifo "$pipe/log"
(
    exec <"$pipe/log"
    rm -r "$pipe"
    tell "$@" >&2
) &
exec "$plainsong" serve "$@" 2>"$pipe/log"
