#!/bin/sh
# A prompt that a slot still holds against one that is read.
#   sh bench/experiments/05-reuse.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
scene reuse
