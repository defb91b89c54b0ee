#!/bin/sh
# What saturates first: bytes and multiply-adds of a step, and what each reaches.
#   sh bench/experiments/10-saturation.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
compare gb_s,share_of_peak,bytes_per_step,macs_per_step,step_ms,path=device "rows: --streams 1,2,4,8,16,32 --gen 12 --prompt 8"
