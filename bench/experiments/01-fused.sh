#!/bin/sh
# Fused steps against one stream a submission, and against the best solo stream.
#   sh bench/experiments/01-fused.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
compare aggregate_tok_s,stream_tok_s,submissions_per_step "fused: --streams 1,2,4,8 --prompt 16 --gen 16" "serialized: --streams 1,2,4,8 --prompt 16 --gen 16 --serialize"
