#!/bin/sh
# What keeping the setup saves: phases of a step with the cache and without.
#   sh bench/experiments/02-setup-cache.sh [MODEL.gguf]
set -u
. "$(dirname "$0")/begin.sh"
compare phase_ms.setup,phase_ms.submit,phase_ms.wait,phase_ms.tail,step_ms "kept: --streams 1,8 --prompt 16 --gen 32" "made anew: --streams 1,8 --prompt 16 --gen 32 --no-setup-cache"
