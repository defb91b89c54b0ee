#!/bin/sh
# A stream that is joined by others and left by them: its rate in each part, and its bytes.
#   sh bench/experiments/04-ragged.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
scene ragged
