#!/bin/sh
# Experts grouped over the rows of a step against each row alone, and how many distinct ones a step hits.
#   sh bench/experiments/03-experts.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
compare aggregate_tok_s,experts_hit_per_layer,bytes_per_step "grouped: --streams 1,2,4,8,16 --gen 12 --prompt 16" "per-row: --streams 1,2,4,8,16 --gen 12 --prompt 16 --experts per-row"
