#!/bin/sh
# The GPU's checks and figures, on a machine with an NVIDIA GPU that may be bare: needs sh, python3 and the driver; the program comes prebuilt
# in build/dev (make h200-kit). From the tree's root:
#   sh bench/h200.sh STEP...
#     check     golden hashes of plainsong-tiny (f16, q8_0), launches and their order, verify --quick, in every mode
#     verify    verify in full on plainsong-tiny: minutes
#     files     synthetic 30b-a3b files into memory: 2 layers q4_0 and q4_k_m, 48 layers q4_0; files-k: 48 layers q4_k_m
#     hash      2 layers: the logits' hashes of CPU and GPU are equal, decode at 1 to 96 streams, prompts in chunks, f16 and q8_0
#     bench     48 layers, 128 tokens after 128, 1 to 64 streams; bench-k: q4_k_m
#     prompt    prompts of 512, 2048 and 8192     long   decode at 1 and 8 streams after 2048 and 8192, at WIDTHS (1) after 32768, f16 and q8_0; 128 streams
#     clock     a step's kernels, each one's time in the step and the gaps between, at 1, 8, 16 and 64 streams; marks too, where the kit was made with NVCCFLAGS=-DGPU_MARKS
#     modes     48 layers at 1 and 8 streams in each mode        kernels   bench/kernels.cu, built there by nvcc
#     few       bench/few.cu: kernels of few rows, old and new, in four builds; then 1 to 8 streams and the checks in the modes graph, graph,ring
#               and graph,apart
#     sanitize  compute-sanitizer on plainsong-tiny               ncu      counters of a step's kernels at 1 stream
#   MODE=... (PLAINSONG_CUDA_MODE) for bench, prompt, long and hash; DIR: where files go; LIMIT: seconds a step may take
# Each step ends with a short table or "ok" lines; logs go to $OUT, where that is set. Status 1 when a check failed.
set -u
cd "$(dirname "$0")/.." || exit 1
program=build/dev/plainsong
LD_LIBRARY_PATH=$PWD/build/dev/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PLAINSONG_CUDA_MODE=${MODE:-graph}
PATH=$PATH:/usr/local/cuda/bin
export LD_LIBRARY_PATH PLAINSONG_CUDA_MODE PATH
logs=${OUT:-$(mktemp -d)}
failed=0
modes="graph graph,apart plain"

# place KB: a folder for files of that size: memory when it fits
place() {
    if [ -z "${DIR:-}" ]; then
        DIR=/dev/shm
        [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -gt "$1" ] || mount -o remount,size=110G /dev/shm 2>/dev/null ||
            DIR=${TMPDIR:-/tmp}
    fi
    echo "files in $DIR"
}
file() { echo "${DIR:-/dev/shm}/$1.synthetic.gguf"; }
find_files() { # where place put them, in an earlier call too
    [ -n "${DIR:-}" ] || { DIR=/dev/shm; [ -f "$(file q4_0-2)" ] || [ -f "$(file q4_0-48)" ] || DIR=${TMPDIR:-/tmp}; }
}

# limited SECONDS COMMAND...
limited() {
    seconds=$1
    shift
    timeout -k 5 "${LIMIT:-$seconds}" "$@"
}

# holds NAME SECONDS LOG COMMAND...: one line, and on failure the end of what it said
holds() {
    name=$1 seconds=$2 log=$logs/$3
    shift 3
    begin=$(date +%s)
    if limited "$seconds" "$@" >"$log" 2>&1; then
        echo "ok $name: $(tail -n 1 "$log" | cut -c 1-120) ($(($(date +%s) - begin)) s)"
    else
        echo "not ok $name: status $?"
        tail -n 8 "$log" | cut -c 1-300 | sed 's/^/    | /'
        failed=1
    fi
}

step_check() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
    for kv in f16 q8_0; do
        holds "golden $kv" 60 "golden-$kv.log" "$program" verify --device cuda --golden --kv $kv
    done
    for mode in $modes; do
        PLAINSONG_CUDA_MODE=$mode
        holds "launches $mode" 60 "launches-$mode.log" build/dev/launches
        grep 'groups:' "$logs/launches-$mode.log" | sed 's/^/    /'
        holds "golden $mode" 60 "golden-$mode.log" "$program" verify --device cuda --golden
        holds "quick $mode" 90 "quick-$mode.log" "$program" verify --device cuda --quick
    done
    PLAINSONG_CUDA_MODE=${MODE:-graph}
}

step_verify() {
    holds "verify" 540 verify.log "$program" verify --device cuda
}

make_file() { # TYPE LAYERS SEED
    [ -f "$(file "$1-$2")" ] ||
        { python3 tools/make_synthetic_gguf.py "$(file part-"$1-$2")" --layers "$2" --type "$1" --seed "$3" >"$logs/file-$1-$2.log" 2>&1 &&
            mv "$(file part-"$1-$2")" "$(file "$1-$2")"; }
}
made() { # NAME...
    wait
    for name in "$@"; do
        [ -f "$(file "$name")" ] && ls -l "$(file "$name")" | awk '{ printf "ok file: %.2f GB %s\n", $5 / 1e9, $NF }' ||
            { echo "not ok file $name"; tail -n 3 "$logs/file-$name.log"; failed=1; }
    done
}
step_files() {
    place 24000000
    make_file q4_0 2 1 &
    make_file q4_k_m 2 2 &
    make_file q4_0 48 3 &
    made q4_0-2 q4_k_m-2 q4_0-48
}
step_files_k() {
    place 22000000
    make_file q4_k_m 48 4 &
    made q4_k_m-48
}

# bench LOG SECONDS ARGS...: as JSON into a file
bench() {
    log=$logs/$1.json seconds=$2
    shift 2
    limited "$seconds" "$program" bench --runs 1 --json "$@" >"$log" 2>"$log.err" && return
    echo "not ok bench $*: $(grep . "$log.err" | tail -n 1 | cut -c 1-300)"
    failed=1
    return 1
}

hashes() { # FILE.json: streams, path, hash
    python3 -c 'import json, sys
for r in json.load(open(sys.argv[1]))["runs"]: print(r["streams"], r["path"], r["logits_hash"])' "$1"
}
same_hash() { # NAME ARGS...: on both devices
    name=$1
    shift
    bench "hash-$name-cpu" 280 --device cpu "$@" && bench "hash-$name-cuda" 120 --device cuda "$@" || return
    if hashes "$logs/hash-$name-cpu.json" >"$logs/$name.cpu" && hashes "$logs/hash-$name-cuda.json" >"$logs/$name.cuda" &&
        [ -s "$logs/$name.cpu" ] && diff "$logs/$name.cpu" "$logs/$name.cuda" >"$logs/$name.diff"; then
        echo "ok hash $name: $(wc -l <"$logs/$name.cpu") runs equal, the last $(tail -n 1 "$logs/$name.cpu")"
    else
        echo "not ok hash $name"
        head -n 6 "$logs/$name.diff" | sed 's/^/    | /'
        failed=1
    fi
}
step_hash() {
    find_files
    for type in q4_0 q4_k_m; do
        same_hash "$type-decode" -m "$(file "$type-2")" --streams 1,2,3,4,5,8,9,16,17,32,33,64,96 --prompt 19 --gen 6 --ctx 64
        same_hash "$type-chunks" -m "$(file "$type-2")" --streams 1,3 --prompt 700 --gen 4 --ctx 768
        same_hash "$type-prompt" -m "$(file "$type-2")" --streams 1 --prompt 200 --gen 4 --ctx 256
        same_hash "$type-q8_0" -m "$(file "$type-2")" --streams 1,4,16 --prompt 150 --gen 6 --ctx 256 --kv q8_0
    done
}

table() { # FILE.json...: a line for each run
    python3 -c 'import json, sys
form = "%-22s %7s %-7s %9s %9s %8s %7s %7s %7s %7s %6s"
print(form % ("log", "streams", "path", "tok/s", "prompt/s", "step ms", "setup", "submit", "wait", "GB/s", "peak"))
mid = lambda x: x.get("median", 0) if isinstance(x, dict) else x or 0
for name in sys.argv[1:]:
    for r in json.load(open(name))["runs"]:
        p = {k: mid(v) for k, v in r["phase_ms"].items()}
        print(form % (name.split("/")[-1][:-5][:22], r["streams"], r["path"], "%.0f" % mid(r["aggregate_tok_s"]), "%.0f" % mid(r.get("prompt_tok_s")),
            "%.3f" % sum(p.values()), *("%.3f" % p.get(k, 0) for k in ("setup", "submit", "wait")), "%.0f" % mid(r.get("gb_s")), "%.2f" % mid(r.get("share_of_peak"))))' "$@"
}
decode() { # TYPE
    find_files
    bench "bench-$1" 300 -m "$(file "$1-48")" --device cuda --streams 1,2,4,8,16,32,64 --prompt 128 --gen 128 --ctx 512 &&
        table "$logs/bench-$1.json"
}
step_bench() { decode q4_0; }
step_bench_k() { decode q4_k_m; }

step_prompt() {
    find_files
    for n in 512 2048 8192; do
        bench "prompt-$n" 120 -m "$(file q4_0-48)" --device cuda --streams 1 --prompt $n --gen 8 --ctx $((n + 64)) &&
            table "$logs/prompt-$n.json"
    done
}

step_long() {
    find_files
    for kv in f16 q8_0; do
        for n in 2048 8192 32768; do
            widths=1,8
            [ $n -lt 32768 ] || widths=${WIDTHS:-1} # 8 streams read 262,144 tokens first
            only= # both paths would read those prompts twice
            [ $n -lt 32768 ] || only="--path device"
            bench "long-$kv-$n" 150 $only -m "$(file q4_0-48)" --device cuda --streams $widths --prompt $n --gen 64 --ctx $((n + 128)) --kv $kv &&
                table "$logs/long-$kv-$n.json"
        done
    done
    bench rows-128 150 -m "$(file q4_0-48)" --device cuda --streams 128 --prompt 128 --gen 64 --ctx 256 && table "$logs/rows-128.json"
}

step_modes() {
    find_files
    for mode in $modes; do
        PLAINSONG_CUDA_MODE=$mode
        bench "mode-$mode" 90 -m "$(file q4_0-48)" --device cuda --streams 1,8 --prompt 128 --gen 128 --ctx 512 && table "$logs/mode-$mode.json"
    done
    PLAINSONG_CUDA_MODE=${MODE:-graph}
}

# Where a step's time goes: the table of the program that ran the most steps is the decode's.
step_clock() {
    find_files
    for n in ${STREAMS:-1 8 16 64}; do
        PLAINSONG_CUDA_MODE=${MODE:-graph},clock
        bench "clock-$n" 90 -m "$(file q4_0-48)" --device cuda --streams "$n" --prompt 128 --gen 32 --ctx 256 && table "$logs/clock-$n.json"
        sed 's/^/    /' "$logs/clock-$n.json.err" | grep -v '^ *$'
    done
    PLAINSONG_CUDA_MODE=${MODE:-graph}
}

step_kernels() {
    holds "kernels built" 300 kernels-nvcc.log nvcc -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/kernels bench/kernels.cu
    limited 120 build/kernels 2>&1 | tee "$logs/kernels.log"
}

build_few() { # NAME FLAGS...: unless the kit has it
    name=$1
    shift
    [ ! -x "build/dev/$name" ] || { cp "build/dev/$name" "build/$name"; return; }
    nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc "$@" -o "build/$name" bench/few.cu >"$logs/$name-nvcc.log" 2>&1
}
step_few() {
    build_few few & build_few few-2 -DGPU_FEW_TILES=2u & build_few few-1 -DGPU_FEW_TILES=1u & build_few few-wide -DGROUPS=1 &
    wait
    for name in few few-2 few-1 few-wide; do
        echo "-- $name"
        limited 60 "build/$name" 2>&1 | tee "$logs/$name.log"
        grep -q "same bytes" "$logs/$name.log" && ! grep -q DIFFER "$logs/$name.log" || { echo "not ok $name"; failed=1; }
    done
    find_files
    for mode in graph graph,ring graph,apart; do
        PLAINSONG_CUDA_MODE=$mode
        holds "golden $mode" 60 "golden-$mode.log" "$program" verify --device cuda --golden
        [ ! -f "$(file q4_0-48)" ] ||
            { bench "few-$mode" 120 -m "$(file q4_0-48)" --device cuda --streams 1,2,4,8 --prompt 128 --gen 128 --ctx 512 && table "$logs/few-$mode.json"; }
    done
    PLAINSONG_CUDA_MODE=${MODE:-graph}
}

sanitizer() { # NAME MODE ARGS...
    PLAINSONG_CUDA_MODE=$2 said=$1-$2.log
    title="$1, $2"
    shift 2
    holds "$title" 280 "$said" compute-sanitizer --error-exitcode 9 "$@" "$program" run -p "What is 348 + 275?" -n 6 --device cuda
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|Invalid|hazard' "$logs/$said" | head -n 3 | sed 's/^/    /'
}
step_sanitize() {
    for mode in plain; do
        sanitizer memcheck $mode --tool memcheck
        sanitizer racecheck $mode --tool racecheck
    done
    sanitizer initcheck plain --tool initcheck
    sanitizer synccheck plain --tool synccheck
    PLAINSONG_CUDA_MODE=${MODE:-graph}
}

# Launches one by one; the first are the prompt's, so they are skipped: LAUNCHES of a decode step are looked at.
step_ncu() {
    find_files
    PLAINSONG_CUDA_MODE=plain
    limited 280 ncu --clock-control none --launch-skip "${SKIP:-3000}" --launch-count "${LAUNCHES:-24}" --csv --metrics \
        gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes_read.sum,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread \
        "$program" bench -m "$(file q4_0-48)" --device cuda --streams "${STREAMS:-1}" --prompt 8 --gen 32 --ctx 64 --runs 1 >"$logs/ncu.csv" 2>"$logs/ncu.err" ||
        { echo "not ok ncu: $(tail -n 1 "$logs/ncu.err")"; failed=1; }
    PLAINSONG_CUDA_MODE=${MODE:-graph}
    python3 -c 'import csv, sys
lines = [l for l in open(sys.argv[1]) if l.startswith("\"")]
rows = {}
for r in csv.DictReader(lines):
    rows.setdefault((int(r["ID"]), r["Kernel Name"].split("(")[0]), {})[r["Metric Name"].split(".")[0]] = r["Metric Value"] + " " + r["Metric Unit"]
for (i, name), m in sorted(rows.items()):
    print("%4d %-20s" % (i, name[:20]), "  ".join("%s %s" % (k.split("__")[1][:14], v) for k, v in sorted(m.items())))' "$logs/ncu.csv"
}

[ $# -gt 0 ] || { sed -n '2,/^set -u/p' "$0" | sed 's/^# \{0,1\}//; /^set -u/d'; exit 2; }
[ -x "$program" ] || { echo "no $program: make h200-kit" >&2; exit 1; }
for step in "$@"; do
    case $step in
    check | verify | files | hash | bench | prompt | long | clock | modes | kernels | few | sanitize | ncu) begin_s=$(date +%s); "step_$step" ;;
    files-k | bench-k) begin_s=$(date +%s); "step_${step%-k}_k" ;;
    *) echo "no such step: $step" >&2; exit 2 ;;
    esac
    echo "== $step: $(($(date +%s) - begin_s)) s"
done
exit $failed
