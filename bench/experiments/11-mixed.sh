#!/bin/sh
# Running streams while a long prompt is read.
#   sh bench/experiments/11-mixed.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
# The joining prompt: long enough that its pace settles. PROMPT=4096 is what the promise speaks of.
echo '```'
"$plainsong" bench -m "$model" --mixed --streams 4 --prompt "${PROMPT:-1024}" --ctx "${CTX:-2560}" --gen 32 --runs "$runs" 2>/dev/null
echo '```'
