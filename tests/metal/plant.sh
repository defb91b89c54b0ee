#!/bin/sh
# Can the fake Metal find a fault of the host? Faults are planted one at a time into the host's files; each must be found, by the fake's line or
# by bytes that are not the CPU's.
#   sh tests/metal/plant.sh BUILD_DIR [NAME...]     after a build with METAL=fake; all faults, or those named
# Prints "ok NAME: what was seen" or "not ok NAME: why"; ends with 1 when one was missed. A program for each: an edited file, linked again.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$1
shift
wanted=" $* "
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
failed=0

# Some tokens, in one command buffer a step.
say() { # PROGRAM DEVICE
    PLAINSONG_FAKE_METAL=single timeout 120 "$1" run --device "$2" -p "What is 348 + 275?" -n 4 --ctx 256 >"$tmp/$2" 2>"$tmp/err"
}

# plant NAME FILE SED SEEN: the sed script on FILE; SEEN: a pattern of the line that tells, or "bytes": other text than the CPU's.
plant() {
    name=$1 file=$2 script=$3 seen=$4
    case $wanted in
    "  " | *" $name "*) ;;
    *) return ;;
    esac
    why=
    sed "$script" "src/device/$file" >"$tmp/planted.c"
    if cmp -s "src/device/$file" "$tmp/planted.c"; then
        why="the edit no longer applies to $file"
    elif ! make -s METAL=fake CC="${CC:-gcc}" B="$build" PLANTED="$tmp/planted.c" "$tmp/planted" >"$tmp/log" 2>&1; then
        why="does not build: $(grep -m 1 error "$tmp/log")"
    else
        say "$tmp/planted" metal
        status=$?
        line=$(grep -m 1 -e "^fake Metal: " -e "^plainsong run: " "$tmp/err")
        if [ "$seen" = bytes ]; then
            if [ $status -ne 0 ]; then
                why="status $status, \"$line\"; expected other bytes than the CPU's"
            elif cmp -s "$tmp/cpu" "$tmp/metal"; then
                why="not seen: the CPU's text"
            else
                line="other bytes than the CPU's"
            fi
        elif [ $status -eq 0 ] || ! echo "$line" | grep -q "$seen"; then
            why="status $status, \"$line\"; expected $seen"
        fi
    fi
    rm -f "$tmp/planted" "$tmp/planted.o"
    if [ -n "$why" ]; then
        echo "not ok $name: $why"
        failed=1
    else
        echo "ok $name: $line"
    fi
}

say "$build/plainsong" cpu && say "$build/plainsong" metal || { cat "$tmp/err"; echo "not ok no fault: status $?"; exit 1; }
if cmp -s "$tmp/cpu" "$tmp/metal"; then
    echo "ok no fault: the CPU's text"
else
    echo "not ok no fault: $(cat "$tmp/metal")"
    exit 1
fi

plant barrier metal_program.c 's/if (l->barrier)/if (l->barrier \&\& l->arg_bytes != sizeof(struct attend_args))/' bytes
plant buffers-swapped metal_program.c 's/b->offset, b->index);$/b->offset, l->arg_bytes != sizeof(struct norm_args) ? b->index : b->index == 4 ? 5 : b->index == 5 ? 4 : b->index);/' \
    'norm: a kernel touches what lies before or behind a buffer'
plant buffer-beyond metal_program.c 's/b->buffer, b->offset, b->index)/b->buffer, b->offset, b->index + (l->arg_bytes == sizeof(struct embed_args)))/' \
    'embed: .*bound beyond its\|embed: no buffer'
plant buffer-unset metal_program.c 's/        if (s->bound\[i\] &&/        if (!named || (s->bound[i] \&\&/; s/at.offset)))$/at.offset))))/' 'no buffer at index'
plant offset-odd metal_program.c 's/b->buffer, b->offset, b->index/b->buffer, b->offset + 4, b->index/' 'offset'
plant offset-beyond metal_program.c 's/at.offset, i + 1}/at.offset + (1ull << 40), i + 1}/' 'of a buffer of'
plant arguments-short metal_program.c 's/l->arg_bytes, 0)/l->arg_bytes - 4 * (l->arg_bytes > 4), 0)/' 'bytes of arguments; its struct has'
plant grid-of-threads metal_program.c 's/{l->n_groups, 1, 1}/{l->n_groups * GPU_THREADS, 1, 1}/' 'a grid of'
plant grid-flat metal_program.c 's/{l->n_groups, 1, 1}/{l->n_groups, 2, 1}/' 'a grid of'
plant threads metal_program.c 's/{GPU_THREADS, 1, 1}/{2 * GPU_THREADS, 1, 1}/' 'groups of 512 x 1 x 1 threads'
plant group-memory metal_program.c 's/u32 shm = (u32)round_up_u64(from->shm_bytes ? from->shm_bytes : 1, LEAST_SHM)/u32 shm = LEAST_SHM/' \
    'of threadgroup memory; it takes'
plant pipeline-kept metal_program.c 's/\.pipeline = s->pipeline == pipeline ? NULL : pipeline/.pipeline = s->pipeline ? NULL : pipeline/' \
    'bytes of arguments\|no buffer\|bound beyond'
plant encoder-open metal_program.c '/mtl_end_encoding/d' 'before its encoder is ended'
plant fast-math metal_program.c 's/MTL_MATH_SAFE/2/' 'fast arithmetic'
plant fast-functions metal_program.c '/mtl_set_math_functions/s/MTL_FUNCTIONS_PRECISE/0/' 'fast arithmetic'
plant leak-a-token dev_metal.c '/await(m, m->flight\[i\]);/,/}/s/mtl_release(&m->words, m->flight\[i\]);/(void)m;/' 'left over\|objects more'
plant leak-of-buffers metal_memory.c 's/mtl_release(&m->words, m->buffers\[i\].object);/(void)m;/' 'left over, most of them MTLBuffer'
plant released-twice dev_metal.c '/await(m, m->flight\[i\]);/,/}/s/mtl_release(&m->words, m->flight\[i\]);/&&/' 'once too often\|is gone'
plant not-retained dev_metal.c 's/mtl_retain(&m->words, c)/c/' 'is gone\|once too often'
plant no-pool dev_metal.c '/^static int metal_submit/,/^}/s/objc_autoreleasePool[A-Z].*(.*)/NULL/' 'there is no pool'
plant two-buffers metal_program.c 's/p->n_flight = one_by_one ? n : 1/p->n_flight = n/; s/if (one_by_one)$/if (true)/' 'more than one command buffer'
plant committed-twice dev_metal.c 's/mtl_commit(&m->words, c);/&&/' 'committed twice'
plant not-committed dev_metal.c 's/mtl_commit(&m->words, c);/;/' 'before it is committed\|is not committed'
plant not-awaited dev_metal.c 's/^    double until = .*/    (void)m, (void)c; return; &/' 'is asked for before\|while the GPU works\|gave a step up'
plant unknown-message dev_metal.c 's/mtl_commit(&m->words, c);/mtl_end_encoding(\&m->words, c);/' 'MTLCommandBuffer does not know -endEncoding'
plant not-resident metal_memory.c '/mtl_add_allocation/d' 'in no residency set'
exit $failed
