/* Steps of every class on the emulated GPU against the CPU: each operation's rows by their hashes, then logits, and the head of each row of
 * them. What goes wrong in a backend breaks the device and says so. */
#include "check.h"

#include "device/account.h"
#include "device/dev_gpu.h"
#include "device/gpu_host.h"

enum { N_SLOTS = 12, N_CTX = 640, MAX_ROWS = 300, MAX_PIECES = 12, TRACED = 100 };

struct piece { /* of a step: so many rows of a slot */
    u32 slot, n;
    u32 wants; /* logits: of how many of its last rows */
};

struct model {
    struct gguf g;
    struct weights w;
    struct plan p;
};

static struct model tiny; /* the first and the last layer of it: two see all that six do, in a third of the time */

static void cut_layers(struct plan *p)
{
    u32 n = 0;
    for (u32 i = 0; i < p->n_ops; i++)
        if (p->ops[i].layer <= 0 || p->ops[i].layer == (i32)p->hp.n_layers - 1)
            p->ops[n++] = p->ops[i];
    p->n_ops = n;
}

static int open_model(void **state)
{
    (void)state;
    struct err err;
    if (!gguf_open(&tiny.g, "models/plainsong-tiny-q4_0.gguf", &err) && !weights_open(&tiny.w, &tiny.g, &err) && !plan_build(&tiny.p, &tiny.w, &err)) {
        cut_layers(&tiny.p);
        return 0;
    }
    print_error("%s\n", err.text);
    return -1;
}

static int close_model(void **state)
{
    (void)state;
    plan_close(&tiny.p);
    weights_close(&tiny.w);
    gguf_close(&tiny.g);
    return 0;
}

static struct device *start(struct device_opts o, const char *name)
{
    struct err err;
    struct device *d;
    o.name = name;
    o.n_slots = N_SLOTS;
    o.n_ctx = N_CTX;
    o.max_rows = MAX_ROWS;
    o.max_logits = N_SLOTS;
    if (device_open(&d, &tiny.p, &o, &err))
        fail_msg("%s: %s", name, err.text);
    return d;
}

/* ---- traces ---- */

struct trace {
    u64 *hashes; /* (ops, MAX_ROWS); 0: not told */
    bool compare;
    u32 n_told, first_op, first_row; /* the first operation that differs; first_op n_ops: none */
};

static void on_row(void *arg, const struct plan_op *op, u32 row, u64 hash)
{
    struct trace *t = arg;
    u32 index = (u32)(op - tiny.p.ops);
    u64 *at = &t->hashes[(u64)index * MAX_ROWS + row];
    t->n_told++;
    if (!t->compare)
        *at = hash;
    else if (*at != hash && index < t->first_op) {
        t->first_op = index;
        t->first_row = row;
    }
}

/* ---- steps ---- */

static u32 make_rows(struct row *rows, const struct piece *pieces, u32 *pos)
{
    u32 n = 0;
    for (u32 i = 0; i < MAX_PIECES && pieces[i].n; i++)
        for (u32 k = 0; k < pieces[i].n; k++)
            rows[n++] = (struct row){.slot = pieces[i].slot, .pos = pos[pieces[i].slot]++, .token = check_below(tiny.p.hp.n_vocab),
                                     .wants_logits = k + pieces[i].wants >= pieces[i].n};
    return n;
}

static u32 n_logits(const struct row *rows, u32 n)
{
    u32 sum = 0;
    for (u32 i = 0; i < n; i++)
        sum += rows[i].wants_logits;
    return sum;
}

static void check_picks(const struct device *d, u32 i, const float *logits)
{
    const u32 *w = device_picks(d, i);
    u32 n = tiny.p.hp.n_vocab;
    assert_non_null(w);
    assert_int_equal(w[0], 1);
    assert_int_equal(w[1], DEVICE_PICKS);
    for (u32 k = 0; k < w[1]; k++) {
        u32 id = w[2 + 2 * k], before = 0;
        assert_true(id < n);
        assert_int_equal(w[3 + 2 * k], EX_BITS(logits[id]));
        for (u32 j = 0; j < n; j++)
            before += logits[j] > logits[id] || (logits[j] == logits[id] && j < id);
        assert_int_equal(before, k);
    }
}

static void step(struct device *d, const struct row *rows, u32 n)
{
    struct err err;
    if (device_step(d, rows, n, &err))
        fail_msg("%s", err.text);
}

/* The step on both, the GPU's once operation by operation, unless it is a long one, and once as it is meant. */
static void both(struct device *cpu, struct device *gpu, const char *what, const struct row *rows, u32 n)
{
    struct trace t = {.hashes = calloc((u64)tiny.p.n_ops * MAX_ROWS, sizeof(u64)), .first_op = tiny.p.n_ops};
    assert_non_null(t.hashes);
    device_set_trace(cpu, on_row, &t);
    step(cpu, rows, n);
    u32 told = t.n_told;
    t.compare = true;
    t.n_told = 0;
    device_set_trace(gpu, on_row, &t);
    if (n <= TRACED)
        step(gpu, rows, n);
    if (t.first_op < tiny.p.n_ops) {
        const struct plan_op *op = &tiny.p.ops[t.first_op];
        fail_msg("%s: layer %d, %s (%s -> %s), row %u differs from the CPU's", what, op->layer, plan_kind_name(op->kind), plan_buf_name(op->in),
                 plan_buf_name(op->out), t.first_row);
    }
    assert_int_equal(t.n_told, n <= TRACED ? told : 0);
    device_set_trace(gpu, NULL, NULL);
    step(gpu, rows, n);
    for (u32 i = 0; i < n_logits(rows, n); i++) {
        check_same_floats(what, device_logits(gpu, i), device_logits(cpu, i), tiny.p.hp.n_vocab);
        check_picks(gpu, i, device_logits(cpu, i));
    }
    free(t.hashes);
}

static const struct {
    const char *what;
    struct piece pieces[MAX_PIECES];
} STEPS[] = {
    {"a tile, no logits", {{0, 5, 0}}},
    {"three rows of a prompt", {{0, 3, 1}}},
    {"one row", {{0, 1, 1}}},
    {"a prompt and a row", {{1, 20, 1}, {0, 1, 1}}},
    {"two rows", {{0, 1, 1}, {1, 1, 1}}},
    {"six rows", {{2, 1, 1}, {3, 1, 1}, {0, 1, 1}, {1, 1, 1}, {4, 1, 1}, {5, 1, 1}}},
    {"ten rows", {{2, 1, 1}, {3, 1, 1}, {0, 1, 1}, {1, 1, 1}, {4, 1, 1}, {5, 1, 1}, {6, 1, 1}, {7, 1, 1}, {8, 1, 1}, {9, 1, 1}}},
    {"27 rows, all logits of few", {{10, 24, 5}, {2, 1, 1}, {3, 2, 2}}},
    {"50 rows", {{0, 45, 1}, {1, 4, 0}, {2, 1, 1}}},
    {"66 rows", {{11, 66, 2}}},
    {"130 rows", {{11, 120, 0}, {3, 9, 1}, {4, 1, 1}}},
    {"258 rows", {{11, 257, 1}, {0, 1, 1}}},
    {"rows of several chunks", {{11, 1, 1}, {0, 1, 1}, {1, 1, 1}}},
    {"tiles of several chunks", {{11, 6, 1}, {0, 1, 1}}},
};

/* Slot 1 goes on from 299 positions of slot 11. */
static void copied_prefix(struct device *cpu, struct device *gpu, u32 *pos)
{
    struct row rows[2];
    device_copy(cpu, 11, 1, 299);
    device_copy(gpu, 11, 1, 299);
    pos[1] = 299;
    both(cpu, gpu, "a copied prefix", rows, make_rows(rows, (struct piece[MAX_PIECES]){{1, 2, 1}}, pos));
}

/* What is counted on one is counted on the other: the same bytes, the same experts. */
static void same_counts(struct device *cpu, struct device *gpu)
{
    struct device_stats a, b;
    device_stats(cpu, &a);
    device_stats(gpu, &b);
    assert_int_equal(a.bytes_read, b.bytes_read);
    assert_int_equal(a.expert_groups, b.expert_groups);
    assert_int_equal(a.copied, b.copied);
    assert_null(b.warning);
    assert_null(b.broken);
}

static void run_steps(struct device_opts o)
{
    struct device *cpu = start(o, "cpu"), *gpu = start(o, "emu");
    struct row rows[MAX_ROWS];
    u32 pos[N_SLOTS] = {0};
    check_seed(1);
    for (u32 i = 0; i < COUNT(STEPS); i++) {
        double t0 = time_now();
        both(cpu, gpu, STEPS[i].what, rows, make_rows(rows, STEPS[i].pieces, pos));
        if (getenv("SHOW_TIMES"))
            print_message("%-30s %.2f s\n", STEPS[i].what, time_now() - t0);
    }
    copied_prefix(cpu, gpu, pos);
    same_counts(cpu, gpu);
    device_close(cpu);
    device_close(gpu);
}

static void every_class_of_steps(void **state)
{
    (void)state;
    run_steps((struct device_opts){.kv = KV_F16});
}

static void every_class_of_steps_q8_0(void **state)
{
    (void)state;
    run_steps((struct device_opts){.kv = KV_Q8_0, .experts_per_row = true, .no_setup_cache = true});
}

static void every_class_of_steps_at_few_rows(void **state)
{
    (void)state;
    run_steps((struct device_opts){.kv = KV_F16, .few_rows = PS_METAL ? 8 : DEVICE_NO_FEW});
}

/* ---- what goes wrong ---- */

enum call { NO_CALL, ALLOC, UPLOAD, PREPARE, SUBMIT, WAIT, DOWNLOAD, COPY };

static struct { /* the emulator, but a call fails once `left` others of its kind have gone well */
    enum call call;
    u32 left;
    u64 free_bytes, largest; /* bytes: free, of one buffer */
    u32 shm_bytes;           /* that a group has; 0: the emulator's */
} fault;

static bool fails(enum call call, struct err *err)
{
    if (fault.call != call || fault.left--)
        return false;
    err_set(err, "the chip is on fire");
    return true;
}

static int f_open(void **self, u32 index, const struct device_opts *opts, struct gpu_info *info, struct err *err)
{
    int rc = gpu_backend_emu.open(self, index, opts, info, err);
    info->free_bytes = fault.free_bytes;
    info->max_buffer_bytes = fault.largest;
    info->shm_bytes = fault.shm_bytes ? fault.shm_bytes : info->shm_bytes;
    return rc;
}

static int f_alloc(void *self, u64 bytes, u64 *base, struct err *err)
{
    return fails(ALLOC, err) ? -1 : gpu_backend_emu.alloc(self, bytes, base, err);
}

static int f_upload(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err)
{
    return fails(UPLOAD, err) ? -1 : gpu_backend_emu.upload(self, to, from, bytes, err);
}

static int f_download(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err)
{
    return fails(DOWNLOAD, err) ? -1 : gpu_backend_emu.download(self, to, from, bytes, err);
}

static int f_copy(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err)
{
    return fails(COPY, err) ? -1 : gpu_backend_emu.copy(self, to, from, bytes, err);
}

static int f_prepare(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err)
{
    return fails(PREPARE, err) ? -1 : gpu_backend_emu.prepare(self, list, n, one_by_one, program, err);
}

static int f_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref from, u64 n_out,
                    struct err *err)
{
    return fails(SUBMIT, err) ? -1 : gpu_backend_emu.submit(self, program, to, inputs, n_bytes, out, from, n_out, err);
}

static int f_wait(void *self, struct err *err)
{
    return fails(WAIT, err) ? -1 : gpu_backend_emu.wait(self, err);
}

static int open_faulty(struct device **d, struct gpu_backend *b, struct device_opts o, struct err *err)
{
    *b = gpu_backend_emu;
    b->open = f_open;
    b->alloc = f_alloc;
    b->upload = f_upload;
    b->download = f_download;
    b->copy = f_copy;
    b->prepare = f_prepare;
    b->submit = f_submit;
    b->wait = f_wait;
    return gpu_device_open(d, &device_emu, b, &tiny.p, &o, err);
}

static const struct device_opts SMALL = {.n_slots = 2, .n_ctx = 256, .max_rows = 4, .max_logits = 2};

static void faults_at_open_are_told(void **state)
{
    (void)state;
    for (enum call call = ALLOC; call <= WAIT; call++)
        for (u32 left = 0; left < 3; left++) {
            struct device *d = NULL;
            struct gpu_backend b;
            struct err err = {.text = ""};
            fault.call = call;
            fault.left = left;
            if (!open_faulty(&d, &b, SMALL, &err)) { /* as many calls were not made */
                device_close(d);
                continue;
            }
            assert_string_equal(err.text, "the chip is on fire");
        }
    fault.call = NO_CALL;
}

static void a_fault_breaks_the_device(void **state)
{
    (void)state;
    static const enum call CALLS[] = {PREPARE, SUBMIT, WAIT, DOWNLOAD, COPY};
    const struct row row = {.wants_logits = true};
    for (u32 i = 0; i < COUNT(CALLS); i++) {
        struct device *d;
        struct gpu_backend b;
        struct err err = {.text = ""}, again = {.text = ""};
        struct device_stats s;
        if (open_faulty(&d, &b, SMALL, &err))
            fail_msg("%s", err.text);
        fault.call = CALLS[i];
        fault.left = 0;
        int rc = device_step(d, &row, 1, &err);
        if (CALLS[i] == DOWNLOAD)
            assert_null(device_logits(d, 0));
        if (CALLS[i] == COPY)
            device_copy(d, 0, 1, 1);
        fault.call = NO_CALL;
        assert_int_equal(rc, CALLS[i] < DOWNLOAD ? -1 : 0);
        assert_int_equal(device_step(d, &row, 1, &again), -1);
        assert_string_equal(again.text, "the chip is on fire");
        assert_null(device_logits(d, 0));
        assert_null(device_picks(d, 0));
        device_stats(d, &s);
        assert_string_equal(s.broken, "the chip is on fire");
        device_close(d);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct device_opts o = SMALL;
    struct device *d;
    struct gpu_backend b;
    struct err err;
    o.n_slots = 8;
    o.n_ctx = 4096;
    fault.free_bytes = (256 << 20) + 60000000; /* the reserve; of the rest the weights take 26 MB, a position of all slots 24 KB */
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    const char *said = "not enough memory on the GPU: --slots 8 --ctx 4096 needs 0.4 GB, 0.3 GB are available: try --slots 8 --ctx ";
    assert_memory_equal(err.text, said, strlen(said));
    o.n_ctx = (u32)atoi(err.text + strlen(said));
    assert_in_range(o.n_ctx, 1024, 1536);
    assert_int_equal(open_faulty(&d, &b, o, &err), 0);
    device_close(d);
    o.n_ctx += 256;
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    fault.free_bytes = (256 << 20) + 30000000;
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    assert_non_null(strstr(err.text, "does not fit in the 0.3 GB available: try --slots 1 --ctx"));
    fault.free_bytes = 1000000;
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    assert_non_null(strstr(err.text, "the model takes 0.3 GB, 0.0 GB are available"));
    fault.free_bytes = 0;
}

/* Memory for all, but no buffer for a part: what is said is of buffers. */
static void a_part_without_a_buffer_is_refused(void **state)
{
    (void)state;
    struct device_opts o = SMALL;
    struct device *d;
    struct gpu_backend b;
    struct err err;
    fault.free_bytes = 4ull << 30;
    fault.largest = 4000000; /* a slot's position takes 3 KB */
    o.n_slots = 8;
    o.n_ctx = 4096;
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    assert_non_null(strstr(err.text, "--slots 8 --ctx 4096 needs a buffer of more than the largest of 0.0 GB: try --slots 1 --ctx "));
    o.n_slots = 1;
    o.n_ctx = (u32)atoi(strstr(err.text, "1 --ctx ") + strlen("1 --ctx "));
    assert_int_equal(open_faulty(&d, &b, o, &err), 0);
    device_close(d);
    o.max_rows = 4096;
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    assert_non_null(strstr(err.text, "a step of this model needs a buffer of "));
    fault.free_bytes = fault.largest = 0;
}

/* Before the weights are loaded, not in the first step. */
static void launches_beyond_the_gpu_are_refused(void **state)
{
    (void)state;
    struct device_opts o = SMALL;
    struct device *d;
    struct gpu_backend b;
    struct err err;
    fault.shm_bytes = 2048;
    fault.call = UPLOAD;
    fault.left = 1; /* the self-test's is a submission */
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    assert_non_null(strstr(err.text, "--device emu: this model needs "));
    assert_non_null(strstr(err.text, "bytes of shared memory in kernel "));
    fault.call = NO_CALL;
    fault.shm_bytes = 0;
    o.n_ctx = 1u << 25; /* x 128 bytes: one more than 32 bits count */
    assert_int_equal(open_faulty(&d, &b, o, &err), -1);
    assert_non_null(strstr(err.text, "--ctx 33554432: one head's keys take 4.3 GB"));
}

/* Dense layers and a shared expert of another width have their rows in one buffer: what is behind a row is not the operation's. */
static void what_an_operation_wrote_is_hashed(void **state)
{
    (void)state;
    struct plan_weight w[] = {{.n_out = 8, .n_in = 64}, {.n_out = 500, .n_in = 64}};
    struct plan_op ops[] = {{.kind = OP_EMBED, .out = BUF_X, .n_mats = 1, .mats = {{.weight = 1, .out = BUF_X}}},
                            {.kind = OP_MAT, .in = BUF_H, .out = BUF_GATE, .n_mats = 1, .mats = {{.weight = 0, .out = BUF_GATE}}},
                            {.kind = OP_SWIGLU, .in = BUF_GATE, .out = BUF_GATE}};
    struct plan p = {.weights = w, .n_weights = 2, .ops = ops, .n_ops = 3};
    p.bufs[BUF_X].width = 64;
    p.bufs[BUF_GATE].width = 96;
    assert_int_equal(account_width(&p, &ops[0], BUF_X), 64);
    assert_int_equal(account_width(&p, &ops[1], BUF_GATE), 8);
    assert_int_equal(account_width(&p, &ops[2], BUF_GATE), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_of_steps),
        cmocka_unit_test(every_class_of_steps_q8_0),
        cmocka_unit_test(every_class_of_steps_at_few_rows),
        cmocka_unit_test(faults_at_open_are_told),
        cmocka_unit_test(a_fault_breaks_the_device),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_part_without_a_buffer_is_refused),
        cmocka_unit_test(launches_beyond_the_gpu_are_refused),
        cmocka_unit_test(what_an_operation_wrote_is_hashed),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
