#!/bin/sh
# The pictures of docs/performance.md: tok/s over streams, one for each model.
#   sh bench/plots.sh [plainsong] MODEL...        RUNS (3), PROMPT (32), GEN (16), STREAMS (1,2,4,8,16,32)
# Writes docs/plots/MODEL.svg, the tables to standard output.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
plainsong=$root/build/release/plainsong
case ${1:?"usage: sh bench/plots.sh [plainsong] MODEL..."} in *plainsong) plainsong=$1; shift ;; esac
mkdir -p "$root/docs/plots"
for model; do
    "$plainsong" bench -m "$model" --streams "${STREAMS:-1,2,4,8,16,32}" --prompt "${PROMPT:-32}" --gen "${GEN:-16}" \
        --runs "${RUNS:-3}" --plot "$root/docs/plots/$(basename "$model" .gguf).svg"
done
