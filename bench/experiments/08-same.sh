#!/bin/sh
# The same text in all streams against different ones: how far experts overlap.
#   sh bench/experiments/08-same.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
scene same
