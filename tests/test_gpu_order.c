/* Which launches wait for which (device/gpu_order.c), on the plans of the shipped model and of tiny ones of every
 * architecture:
 *   - what GPU_ACCESS says each kernel does with its buffers is what it does: no other byte of the device's memory
 *     changes, and what is not read may hold anything before;
 *   - between two barriers launches may run backwards: the same bytes;
 *   - with any one barrier away, backwards, the bytes differ: none is too many. Lists of experts read too early may also
 *     end a kernel in memory that is not there, so each such step is a process of its own. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "device/dev_gpu.h"
#include "device/gpu_host.h"
#include "model/quantize.h"

enum { N_SLOTS = 9, SHORT_CTX = 64, LONG_CTX = 288, MAX_ROWS = 264, MAX_PIECES = 9, MAX_BARRIERS = 128 };
enum { SIDE_BY_SIDE = 4, CHILD_S = 300, SAME = 42 /* exit status */ };
#define NONE UINT32_MAX


struct model {
    char path[128];
    bool made; /* path is the test's own */
    struct gguf g;
    struct weights w;
    struct plan p;
};

/* ---- the emulator, with every launch's turn in the test's hands ---- */

enum how { AS_LISTED, BACKWARDS, CHECKED };

static struct {
    enum how how;
    u32 without;   /* the barrier that is taken away, counted over the list; NONE */
    struct gpu *g; /* CHECKED: whose memory */
    u32 n_barriers;
    bool checked[GK_COUNT];
    enum gpu_kernel waits[MAX_BARRIERS]; /* behind each */
    struct gpu_launch *list;
    u32 n;
    u8 *kept[3]; /* CHECKED: the memory before a launch and after its two runs */
} turn;

static int t_prepare(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err)
{
    struct gpu_launch *own = malloc(n * sizeof *own);
    u32 to = 0;
    assert_non_null(own);
    turn.n_barriers = 0;
    for (u32 from = 0; from < n; from = to) {
        for (to = from + 1; to < n; to++) {
            if (!list[to].barrier)
                continue;
            assert_true(turn.n_barriers < MAX_BARRIERS);
            turn.waits[turn.n_barriers] = list[to].kernel;
            if (turn.n_barriers++ != turn.without)
                break;
        }
        for (u32 i = from; i < to; i++)
            own[i] = list[turn.how == BACKWARDS ? to - 1 - (i - from) : i];
    }
    for (u32 i = 0; i < n; i++)
        own[i].barrier = 1;
    int rc = gpu_backend_emu.prepare(self, own, n, one_by_one, program, err);
    free(turn.list);
    turn.list = own;
    turn.n = n;
    return rc;
}

/* ---- memory: the scratch, then the arena ---- */

static u8 *memory_at(const struct gpu *g, u64 i)
{
    u64 base = i < g->scratch_bytes ? g->inputs.base + i : g->arena.base + (i - g->scratch_bytes);
    return (u8 *)(uintptr_t)base;
}

static u64 memory_bytes(const struct gpu *g)
{
    return g->scratch_bytes + g->arena_bytes;
}

static void save(const struct gpu *g, u8 *to)
{
    memcpy(to, memory_at(g, 0), g->scratch_bytes);
    memcpy(to + g->scratch_bytes, memory_at(g, g->scratch_bytes), g->arena_bytes);
}

static void put_back(const struct gpu *g, const u8 *from)
{
    memcpy(memory_at(g, 0), from, g->scratch_bytes);
    memcpy(memory_at(g, g->scratch_bytes), from + g->scratch_bytes, g->arena_bytes);
}

static u8 *snapshot(const struct gpu *g)
{
    u8 *p = malloc(memory_bytes(g));
    assert_non_null(p);
    save(g, p);
    return p;
}

/* Parts [0, n_regions) and the arena, as gpu_region numbers them. */
static u32 parts(const struct gpu *g)
{
    return g->n_regions + 1;
}

static u64 part_bit(const struct gpu *g, u32 part)
{
    return 1ull << (part < g->n_regions ? part : GPU_REGIONS);
}

static void part_range(const struct gpu *g, u32 part, u64 *from, u64 *to)
{
    *from = part < g->n_regions ? g->regions[part] : g->scratch_bytes;
    *to = part + 1 < g->n_regions ? g->regions[part + 1] : part < g->n_regions ? g->scratch_bytes : memory_bytes(g);
}

/* ---- a launch does what GPU_ACCESS says ---- */

struct access {
    u64 reads, writes, named; /* parts, as bits */
};

static struct access access_of(const struct gpu *g, const struct gpu_launch *l)
{
    struct access a = {0};
    const char *letters = gpu_access(l->kernel);
    for (u32 i = 0; i < l->n_bufs; i++) {
        u64 bit = l->bufs[i].base ? gpu_region(g, l->bufs[i]) : 0;
        char c = i < strlen(letters) ? letters[i] : '-';
        a.named |= bit;
        a.reads |= c == 'r' || c == 'x' ? bit : 0;
        a.writes |= c == 'w' || c == 'x' || c == 'o' ? bit : 0;
    }
    return a;
}

static void run_one(void *self, const struct gpu_launch *l)
{
    struct err err;
    void *program;
    struct gpu_launch own = *l;
    struct gpu_ref none = {0};
    own.barrier = 0;
    if (gpu_backend_emu.prepare(self, &own, 1, false, &program, &err) ||
        gpu_backend_emu.submit(self, program, turn.g->inputs, turn.g->words, turn.g->n_words * sizeof(u32), NULL, none, 0, &err))
        fail_msg("%s", err.text);
    gpu_backend_emu.discard(self, program);
}

/* A part whose old contents the launch has no right to: filled, run, and what came of it kept. */
static void run_filled(void *self, const struct gpu_launch *l, const struct access *a, const u8 *before, u8 fill, u8 *after)
{
    const struct gpu *g = turn.g;
    put_back(g, before);
    for (u32 p = 1; p < parts(g); p++) { /* 0: the inputs, which a submission writes */
        u64 from, to;
        part_range(g, p, &from, &to);
        if (part_bit(g, p) & ~a->reads)
            memset(memory_at(g, from), fill, to - from);
    }
    run_one(self, l);
    save(g, after);
}

static bool all_are(const u8 *p, u64 n, u8 byte)
{
    return !n || (*p == byte && !memcmp(p, p + 1, n - 1));
}

/* Part p after both runs: what was written is the same; elsewhere stands what stood there. Leaves what is true in after0. */
static void join_part(const struct gpu_launch *l, const struct access *a, u32 p, const u8 fills[2], const u8 *before, u8 *after0, const u8 *after1)
{
    u64 from, to, bit = part_bit(turn.g, p);
    bool filled = p && bit & ~a->reads;
    part_range(turn.g, p, &from, &to);
    u64 n = to - from;
    if (filled ? all_are(after0 + from, n, fills[0]) && all_are(after1 + from, n, fills[1])
               : !memcmp(after0 + from, before + from, n) && !memcmp(after1 + from, before + from, n)) { /* most are as they were */
        memcpy(after0 + from, before + from, n);
        return;
    }
    for (u64 i = from; i < to; i++) {
        u8 old0 = filled ? fills[0] : before[i], old1 = filled ? fills[1] : before[i];
        if (after0[i] == old0 && after1[i] == old1) {
            after0[i] = before[i];
            continue;
        }
        if (!(bit & a->writes))
            fail_msg("%s writes part %u, byte %llu, which it has no right to", gpu_kernel_name(l->kernel), p, (unsigned long long)(i - from));
        if (after0[i] != after1[i])
            fail_msg("%s: part %u, byte %llu is %02x or %02x: what it has no right to read shows", gpu_kernel_name(l->kernel), p,
                     (unsigned long long)(i - from), after0[i], after1[i]);
    }
}

static void check_launch(void *self, const struct gpu_launch *l)
{
    static const u8 FILLS[2] = {0x00, 0x3F};
    const struct gpu *g = turn.g;
    struct access a = access_of(g, l);
    for (u32 i = 0; i < COUNT(turn.kept); i++)
        assert_non_null(turn.kept[i] = realloc(turn.kept[i], memory_bytes(g)));
    u8 *before = turn.kept[0], *after0 = turn.kept[1], *after1 = turn.kept[2];
    save(g, before);
    assert_true(l->bufs[0].base == g->inputs.base && gpu_region(g, l->bufs[0]) == 1);
    run_filled(self, l, &a, before, FILLS[0], after0);
    run_filled(self, l, &a, before, FILLS[1], after1);
    for (u32 p = 0; p < parts(g); p++)
        join_part(l, &a, p, FILLS, before, after0, after1);
    put_back(g, after0);
    turn.checked[l->kernel] = true;
}

static int t_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref from, u64 n_out,
                    struct err *err)
{
    if (turn.how != CHECKED)
        return gpu_backend_emu.submit(self, program, to, inputs, n_bytes, out, from, n_out, err);
    memcpy((void *)(uintptr_t)(to.base + to.offset), inputs, n_bytes);
    for (u32 i = 0; i < turn.n; i++)
        check_launch(self, &turn.list[i]);
    memcpy(out, (const void *)(uintptr_t)(from.base + from.offset), n_out);
    return 0;
}

static u32 few_rows; /* device_opts */

static struct device *start(const struct model *m, enum kv_type kv, u32 n_ctx, struct gpu_backend *b)
{
    struct err err;
    struct device *d;
    struct device_opts o = {.n_threads = 1 /* fork */, .n_slots = N_SLOTS, .n_ctx = n_ctx, .kv = kv,
                            .max_rows = min_u32(n_ctx, MAX_ROWS), .max_logits = N_SLOTS, .no_setup_cache = true,
                            .few_rows = few_rows};
    turn.how = AS_LISTED;
    turn.without = NONE;
    *b = gpu_backend_emu;
    b->prepare = t_prepare;
    b->submit = t_submit;
    if (gpu_device_open(&d, &device_emu, b, &m->p, &o, &err))
        fail_msg("%s: %s", m->path, err.text);
    turn.g = (struct gpu *)d;
    return d;
}

/* ---- steps ---- */

struct piece { /* of a step: so many rows of a slot; of the last some want logits */
    u32 slot, n, wants;
};

struct scene {
    const char *what;
    struct piece pieces[MAX_PIECES];
};

static u32 make_rows(struct row *rows, const struct piece *pieces, const u32 *pos, u32 n_vocab)
{
    u32 n = 0;
    for (u32 i = 0; i < MAX_PIECES && pieces[i].n; i++)
        for (u32 k = 0; k < pieces[i].n; k++)
            rows[n++] = (struct row){.slot = pieces[i].slot, .pos = pos[pieces[i].slot] + k, .token = check_below(n_vocab),
                                     .wants_logits = k + pieces[i].wants >= pieces[i].n};
    return n;
}

/* Everything that outlives a step: logits, what came back, keys and values. */
static u64 outcome(const struct gpu *g)
{
    const struct gpu_buf *logits = &g->bufs[BUF_LOGITS];
    u64 h = check_hash(0, g->out, gpu_out_bytes(g));
    for (u32 i = 0; i < g->n_logits; i++)
        h = check_hash(h, memory_at(g, logits->x.offset + (u64)i * logits->stride * sizeof(float)),
                       g->dev.plan->hp.n_vocab * sizeof(float));
    return check_hash(h, memory_at(g, g->scratch_bytes), g->arena_bytes);
}

static u64 run(struct device *d, enum how how, u32 without, const struct row *rows, u32 n)
{
    struct err err;
    turn.how = how;
    turn.without = without;
    if (device_step(d, rows, n, &err))
        fail_msg("%s", err.text);
    return outcome((struct gpu *)d);
}

/* The step without barrier k, in a child that ends with SAME when that does not show. */
static pid_t start_without(struct device *d, u32 k, const struct row *rows, u32 n, u64 want)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the next test */
    signal(SIGBUS, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    signal(SIGFPE, SIG_DFL);
    signal(SIGILL, SIG_DFL);
    alarm(CHILD_S);
    dup2(open("/dev/null", O_WRONLY), 2); /* what a sanitizer says of it */
    struct err err;
    turn.how = BACKWARDS;
    turn.without = k;
    _exit(device_step(d, rows, n, &err) == 0 && outcome((struct gpu *)d) == want ? SAME : 0);
}

static void each_is_needed(struct device *d, const struct row *rows, u32 n, u64 want, u32 n_barriers, const char *model, const char *what)
{
    for (u32 k = 0; k < n_barriers; k += SIDE_BY_SIDE) {
        u32 some = min_u32(SIDE_BY_SIDE, n_barriers - k), needless = NONE;
        pid_t pids[SIDE_BY_SIDE];
        int status = 0;
        for (u32 i = 0; i < some; i++)
            pids[i] = start_without(d, k + i, rows, n, want);
        for (u32 i = 0; i < some; i++) {
            assert_true(waitpid(pids[i], &status, 0) == pids[i]);
            if (WIFEXITED(status) ? WEXITSTATUS(status) == SAME : WTERMSIG(status) == SIGALRM)
                needless = k + i;
        }
        if (needless != NONE)
            fail_msg("%s, %s: barrier %u of %u, before %s, is not needed (or without it a kernel hangs)", model, what, needless,
                     n_barriers, gpu_kernel_name(turn.waits[needless]));
    }
}

/* each: every barrier is taken away in turn, which is most of the test's time.
 * The step after another of its class with other tokens, which leaves plausible things to be read too early. */
static void check_step(struct device *d, const struct scene *s, u32 *pos, const char *model, bool each)
{
    struct gpu *g = (struct gpu *)d;
    struct row rows[MAX_ROWS], others[MAX_ROWS];
    u32 n = make_rows(rows, s->pieces, pos, g->dev.plan->hp.n_vocab);
    memcpy(others, rows, sizeof rows);
    for (u32 i = 0; i < n; i++)
        others[i].token = (rows[i].token + 1 + i % 7) % g->dev.plan->hp.n_vocab;
    run(d, AS_LISTED, NONE, others, n);
    u8 *before = snapshot(g);
    u64 want = run(d, AS_LISTED, NONE, rows, n);
    u32 n_barriers = turn.n_barriers;
    put_back(g, before);
    if (run(d, CHECKED, NONE, rows, n) != want)
        fail_msg("%s, %s: launch by launch the bytes differ", model, s->what);
    put_back(g, before);
    if (run(d, BACKWARDS, NONE, rows, n) != want)
        fail_msg("%s, %s: a barrier is missing: launches between two of them, backwards, give other bytes", model, s->what);
    put_back(g, before);
    if (each || getenv("EACH_BARRIER"))
        each_is_needed(d, rows, n, want, n_barriers, model, s->what);
    run(d, AS_LISTED, NONE, rows, n);
    for (u32 i = 0; i < n; i++)
        pos[rows[i].slot] = rows[i].pos + 1;
    if (getenv("SHOW_COUNTS"))
        print_message("%-24s %-28s %3u launches, %3u barriers\n", model, s->what, turn.n, n_barriers);
    free(before);
}

/* Barriers are taken away in every second scene, from `odd` on; EACH_BARRIER=1 in the environment: in all. */
static void check_model(const struct model *m, const char *name, enum kv_type kv, u32 n_ctx, const struct scene *scenes, u32 n, u32 odd)
{
    struct gpu_backend b;
    struct device *d = start(m, kv, n_ctx, &b);
    u32 pos[N_SLOTS] = {0};
    check_seed(7);
    for (u32 i = 0; i < n; i++)
        check_step(d, &scenes[i], pos, name, i % 2 == odd % 2);
    device_close(d);
    free(turn.list);
    turn.list = NULL;
    for (u32 i = 0; i < COUNT(turn.kept); i++) {
        free(turn.kept[i]);
        turn.kept[i] = NULL;
    }
}

/* ---- models ---- */

static char folder[] = "/tmp/plainsong-order-XXXXXX";

static void open_plan(struct model *m)
{
    struct err err;
    if (gguf_open(&m->g, m->path, &err) || weights_open(&m->w, &m->g, &err) || plan_build(&m->p, &m->w, &err))
        fail_msg("%s: %s", m->path, err.text);
}

static void close_plan(struct model *m)
{
    plan_close(&m->p);
    weights_close(&m->w);
    gguf_close(&m->g);
    if (m->made)
        unlink(m->path);
}

static void make_model(struct model *m, const char *name, const char *type)
{
    char command[512], floats[128];
    struct err err;
    bool quant = type[0] == 'q' && strcmp(type, "q4_1");
    *m = (struct model){.made = true};
    snprintf(m->path, sizeof m->path, "%s/%s-%s.gguf", folder, name, type);
    snprintf(floats, sizeof floats, "%s/%s.gguf", folder, name);
    snprintf(command, sizeof command, "python3 tests/arch/make_gguf.py tests/oracle/arch/%s %s --type %s 2>%s/stderr", name,
             quant ? floats : m->path, quant ? "f32" : type, folder);
    if (system(command))
        fail_msg("failed: %s", command);
    struct quantize_job job = {.in = floats, .out = m->path, .type = (enum dtype)dtype_parse(type)};
    struct quantize_result done;
    if (quant && quantize_file(&job, &done, &err))
        fail_msg("%s", err.text);
    unlink(floats);
    open_plan(m);
}

/* The first and the last layer. */
static void cut_layers(struct plan *p)
{
    u32 n = 0;
    for (u32 i = 0; i < p->n_ops; i++)
        if (p->ops[i].layer <= 0 || p->ops[i].layer == (i32)p->hp.n_layers - 1)
            p->ops[n++] = p->ops[i];
    p->n_ops = n;
}

enum { FEW_SCENES = 3 };
static const struct scene SCENES[] = {
    {"one row", {{0, 1, 1}}},
    {"six rows", {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {5, 1, 1}}},
    {"a prompt and a row", {{2, 11, 1}, {0, 1, 1}}},
    {"rows of a prompt", {{1, 3, 1}}},
    {"two rows", {{0, 1, 1}, {1, 1, 1}}},
    {"a prompt, no logits", {{6, 20, 0}}},
};

static const struct scene LONG_SCENES[] = {
    {"a long prompt", {{8, 70, 0}}},
    {"a longer one", {{8, 135, 1}}},
    {"yet more", {{8, 60, 0}}},
    {"rows of several chunks", {{8, 1, 1}, {0, 1, 1}}},
    {"tiles of several chunks", {{8, 6, 1}, {0, 1, 1}}},
    {"the longest prompt", {{7, 260, 1}}},
};

static void the_shipped_model(void **state)
{
    (void)state;
    struct model m = {.path = "models/plainsong-tiny-q4_0.gguf"};
    open_plan(&m);
    cut_layers(&m.p);
    check_model(&m, "tiny", KV_F16, SHORT_CTX, SCENES, COUNT(SCENES), 0);
    close_plan(&m);
}

static void every_architecture(void **state)
{
    (void)state;
    static const struct {
        const char *name, *type;
        enum kv_type kv;
    } MODELS[] = {{"qwen2", "q4_0", KV_F16},  {"qwen3", "f32", KV_F16},      {"qwen3_tied", "q8_0", KV_F16},
                  {"qwen3_moe", "q4_0", KV_Q8_0}, {"qwen3_moe", "f32", KV_F16},  {"llama", "bf16", KV_F16},
                  {"llama3_scaled", "q4_0", KV_F16}, {"mixtral", "q8_0", KV_F16}, {"olmoe", "q4_0", KV_F16},
                  {"qwen2_moe", "q4_0", KV_F16},  {"qwen2_moe", "f16", KV_F16}};
    for (u32 i = 0; i < COUNT(MODELS); i++) {
        struct model m;
        make_model(&m, MODELS[i].name, MODELS[i].type);
        check_model(&m, MODELS[i].name, MODELS[i].kv, SHORT_CTX, SCENES, FEW_SCENES, i);
        close_plan(&m);
    }
}

static void long_prompts(void **state)
{
    (void)state;
    struct model m;
    make_model(&m, "mixtral", "q4_0"); /* experts in the first layer too */
    check_model(&m, "mixtral", KV_F16, LONG_CTX, LONG_SCENES, COUNT(LONG_SCENES), 1);
    close_plan(&m);
}

/* Kernels for more than a few rows of types that k_dense.h and k_twin.h do not have. */
static void another_type(void **state)
{
    (void)state;
    static const struct scene SOME[] = {{"a long prompt", {{8, 70, 0}}}, {"a prompt", {{8, 20, 1}}}};
    struct model m;
    make_model(&m, "mixtral", "q4_1");
    check_model(&m, "mixtral q4_1", KV_F16, LONG_CTX, SOME, COUNT(SOME), 1);
    close_plan(&m);
}

/* At few rows the kernels that are not taken by themselves. */
static void few_rows_of_the_shipped_model(void **state)
{
    few_rows = PS_METAL ? 8 : DEVICE_NO_FEW;
    the_shipped_model(state);
    few_rows = 0;
}

/* Of those above some launch had each of the table's lines: but the self-test's. */
static void every_kernel_was_there(void **state)
{
    (void)state;
    for (enum gpu_kernel k = 0; k < GK_COUNT; k++)
        if (!turn.checked[k] && k != GK_probe && !(PS_METAL && (k == GK_experts_in_twin || k == GK_experts_out_twin || k == GK_dense_1 || k == GK_dense_2 || k == GK_dense_4))) /* not there */
            fail_msg("%s: no step of this test has it", gpu_kernel_name(k));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/stderr", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture),
        cmocka_unit_test(long_prompts), cmocka_unit_test(another_type),
        cmocka_unit_test(the_shipped_model),
        cmocka_unit_test(few_rows_of_the_shipped_model),
        cmocka_unit_test(every_kernel_was_there),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
