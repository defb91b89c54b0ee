#!/bin/sh
# Row counts to 32: plateau and cliff.
#   sh bench/experiments/09-rows.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
compare aggregate_tok_s,stream_tok_s,experts_hit_per_layer,path=device "rows: --streams 1,2,3,4,6,8,12,16,24,32 --gen 12 --prompt 8"
