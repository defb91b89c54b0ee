#!/bin/sh
# Greedy against seeded sampling.
#   sh bench/experiments/07-sampling.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
scene sampling
