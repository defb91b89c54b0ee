#!/bin/sh
# Can verify fail? Faults are planted one at a time into a copy of the sources; each must be found, with a sensible
# operation named, and the copy without a fault must pass.
#   sh tests/verify/plant.sh [NAME...]     all faults, or those named
# Prints "ok NAME: ..." or "not ok NAME: why" for each; the last line counts; ends with 1 when one was missed. The copy
# is a folder under TMPDIR, removed at the end. JOBS: processes of make (2).
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$(pwd)
wanted=" $* "
jobs=${JOBS:-2}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
trap 'exit 1' INT TERM
passed=0
failed=0
stop=--stop

ok() {
    passed=$((passed + 1))
    echo "ok $1: $2"
}

not_ok() {
    failed=$((failed + 1))
    echo "not ok $1: $2"
}

count() {
    echo "plants: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

build() {
    make -C "$copy" B=build/plant OPT_release=-O1 O3= -j "$jobs" build/plant/plainsong >"$copy/make.log" 2>&1
}

# Only f16: the second KV type doubles the time and not the faults.
check() {
    timeout 300 "$copy/build/plant/plainsong" verify -m "$root/models/plainsong-tiny-q4_0.gguf" --quick --kv f16 $stop \
        >"$copy/out" 2>"$copy/err"
}

# plant NAME FILE SED OPERATION: edits FILE by the sed script, runs verify, expects a difference whose first operation
# matches the pattern.
plant() {
    name=$1 file=$2 script=$3 operation=$4
    case $wanted in
    "  " | *" $name "*) ;;
    *) return ;;
    esac
    if ! sed "$script" "$root/$file" >"$copy/$file" || cmp -s "$root/$file" "$copy/$file"; then
        not_ok "$name" "the edit no longer applies to $file"
    elif ! build; then
        not_ok "$name" "does not build: $(grep -m 1 -e "error: " -e "\*\*\*" "$copy/make.log")"
    else
        check
        status=$?
        found=$(sed -n '/^first difference/,/^verify/ s/^  //p' "$copy/out" | tail -n 1 | sed 's/^first operation that differs: //')
        setting=$(sed -n 's/^first difference: \([^:]*\):.*/\1/p' "$copy/out")
        if [ $status -ne 1 ]; then
            not_ok "$name" "status $status, expected 1: $(tail -n 1 "$copy/out") $(head -c 200 "$copy/err")"
        elif ! tail -n 1 "$copy/out" | grep -Eq '^verify: [0-9]+ comparisons, [1-9][0-9]* differ, hash [0-9a-f]{16}$'; then
            not_ok "$name" "the last line is \"$(tail -n 1 "$copy/out")\" $(head -c 200 "$copy/err")"
        elif ! echo "$found" | grep -Eq "$operation"; then
            not_ok "$name" "named \"$found\", expected $operation: $(grep -A 1 '^first' "$copy/out" | tr '\n' ' ')"
        else
            ok "$name" "$setting: $found"
        fi
    fi
    cp "$root/$file" "$copy/$file" # newer than the object: built anew with the next fault
}

cp -R src include web Makefile "$copy/" || exit 1
[ ! -f VERSION ] || cp VERSION "$copy/"
if ! build; then
    not_ok "no fault" "does not build: $(grep -m 1 -e "error: " -e "\*\*\*" "$copy/make.log")"
    count
fi
if check; then
    ok "no fault" "$(tail -n 1 "$copy/out")"
else
    not_ok "no fault" "$(tail -n 1 "$copy/out") $(head -c 200 "$copy/err")"
fi

# A stream reads the keys of slot 0 instead of its own. Here all settings run, past the first that differs.
stop=
plant neighbour src/device/cpu_attend.c \
    's/\*k = cpu_k(c, slot, (u32)c->op->layer, kv), \*v/*k = cpu_k(c, end[n - 1] <= 32 ? 0 : slot, (u32)c->op->layer, kv), *v/' \
    'layer 0, attend'
stop=--stop

# The order in which experts are added up turns round as soon as a step has several rows.
plant order-experts src/device/cpu_ops.c \
    '/^static void combine_task/,/^}/ {
         s/y\[n\] = c->bufs\[BUF_EXP_OUT\].y\[i\];/u32 k = c->n_rows > 1 ? (2 * row + 1) * hp->n_used - 1 - i : i; y[n] = c->bufs[BUF_EXP_OUT].y[k];/
         s/c->route_w\[i\]/c->route_w[k]/
     }' \
    'layer 0, combine'

# The setup cache survives a change of the number of rows.
plant setup-cache src/device/dev_cpu.c \
    's/if (s->rows == c->n_rows && s->logits == c->n_logits)/if (s->rows \&\& s->logits == c->n_logits)/' \
    'position'

# A slot is said to hold one token more than it does.
plant kept src/engine/kv.c \
    's/\*kept = min_u32(own, n - 1);/*kept = min_u32(own ? own + 1 : 0, n - 1);/' \
    'layer 0, attend'

# A copied prefix loses its last, unfinished panel.
plant copied src/device/dev_cpu.c \
    's/(u64)((n + KV_PANEL - 1) \/ KV_PANEL) \* c->panel_bytes/(u64)(n \/ KV_PANEL) * c->panel_bytes/' \
    'layer 0, attend'

# The first row of a prompt chunk does not see its own key.
plant chunk-border src/device/cpu_attend.c \
    's/end\[n\] = row->pos + 1;/end[n] = row->pos + (row->pos == 0 || row + 1 >= c->rows + c->n_rows || row[1].slot != row->slot || (row > c->rows \&\& row[-1].slot == row->slot));/' \
    'layer 0, attend'

# The random counter depends on the slot.
plant sampler src/engine/sched.c \
    's/sampler_choose(s->sampler, logits, known(s), mask, err)/sampler_choose(s->sampler, logits, known(s) + (u32)s->slot, mask, err)/' \
    'sampling'

# Groups of more than two rows lose their last.
plant lost-pair src/device/cpu_ops.c \
    's/(struct cpu_group){e, begin, end};/(struct cpu_group){e, begin, end - (end - begin > 2)};/' \
    'experts'

# Two rows share the scales of their activations.
plant shared-scale src/device/dev_cpu.c \
    's/d + (u64)i \* blocks/d + (u64)(i \/ 2) * blocks/' \
    'product|experts'

# A stream that is cancelled leaves its first keys and values in every other slot.
plant cancel src/engine/sched.c \
    '/^static void finish/,/^}/ s/    if (s->slot >= 0) {/    for (u32 i = 0; end == PS_END_CANCEL \&\& s->slot >= 0 \&\& i < e->n_slots; i++) if ((i32)i != s->slot) device_copy(e->device, (u32)s->slot, i, 1);\n&/' \
    'attend'

# The logits of a step are handed out in the wrong order.
plant logits-mixed src/engine/sched.c \
    's/device_logits(e->device, s->step_row)/device_logits(e->device, s->step_row - (s->step_row > 0))/' \
    'mixed up'

# A tile of several rows sums over the whole length at once, a single row by segments. Last, since kernels take long
# to build.
plant order-segments src/kernel/scalar.c \
    '/^INLINE void mat_32/,/^}/ s/if (b % (SEGMENT/if ((m == 1 \&\& b % (SEGMENT/
     /^INLINE void mat_32/,/^}/ s/SEGMENT \/ ACT_BLOCK - 1 ||/SEGMENT \/ ACT_BLOCK - 1) ||/' \
    'product|experts'

count
