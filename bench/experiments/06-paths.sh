#!/bin/sh
# The device stepped in a loop against the whole engine.
#   sh bench/experiments/06-paths.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
compare aggregate_tok_s,step_ms,phase_ms.tail,path=engine,path=device "all: --streams 1,2,4,8 --prompt 16 --gen 24"
