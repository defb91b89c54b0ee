#!/bin/sh
# Running streams while a long prompt is read.
#   sh bench/experiments/11-mixed.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
"$plainsong" bench -m "$model" --mixed --runs "$runs"
