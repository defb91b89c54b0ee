/* Products on the GPU, by the emulator, against the scalar reference on the CPU (gpu_scene.h).
 * `build/release/tests/test_gpu_products 'experts_*'` runs some of them; `... barriers` looks for barriers that could be left out, which takes
 * a minute or more and is no part of the rest. */
#include "gpu_scene.h"

static void products(enum gpu_kernel kernel, const char *name, u32 source, u32 most, u32 times)
{
    for (u32 i = 0; i < times; i++)
        for (u32 t = 0; t < N_QUANT; t++)
            try_product(kernel, name, source, TYPES[t], most);
}

static void product_1_multiplies(void **state)
{
    (void)state;
    check_seed(101);
    products(GK_product_1, "product_1", SRC_ACT, 70, 3);
    products(GK_product_1, "product_1", SRC_FLOAT, 70, 2);
    products(GK_product_1, "product_1", SRC_NORM, 8, 3);
}

static void product_2_multiplies(void **state)
{
    (void)state;
    check_seed(102);
    products(GK_product_2, "product_2", SRC_ACT, 70, 3);
    products(GK_product_2, "product_2", SRC_FLOAT, 70, 1);
}

/* Segments and panels in every number of rounds; rows that fill no tile, and tiles without rows. */
static void dense_multiplies(void **state)
{
    static const enum gpu_kernel KERNELS[] = {GK_dense_1, GK_dense_2, GK_dense_4};
    static const char *const NAMES[] = {"dense_1", "dense_2", "dense_4"};
    static const u32 LONG[] = {2048, 4096, 2304, 8448};
    (void)state;
    check_seed(103);
    only_few = true;
    u64 usual = budget;
    for (u32 k = 0; k < COUNT(KERNELS); k++)
        for (u32 t = 0; t < COUNT(FEW_TYPES); t++)
            for (u32 i = 0; i < 4; i++) {
                try_product(KERNELS[k], NAMES[k], SRC_ACT, FEW_TYPES[t], 70);
                budget = 4 << 20;
                only_in = LONG[(i + t) % COUNT(LONG)];
                try_product(KERNELS[k], NAMES[k], SRC_ACT, FEW_TYPES[t], 70);
                only_in = 0;
                budget = usual;
            }
    only_few = false;
}

static void product_many_multiplies(void **state)
{
    (void)state;
    check_seed(104);
    products(GK_product_many, "product_many", SRC_ACT, 70, 4);
}

static void product_float_multiplies(void **state)
{
    (void)state;
    check_seed(105);
    for (u32 i = 0; i < 8; i++)
        for (u32 t = N_QUANT; t < COUNT(TYPES); t++) {
            try_product(GK_product_float, "product_float", SRC_ACT, TYPES[t], 70);
            try_product(GK_product_float, "product_float", SRC_FLOAT, TYPES[t], 70);
            try_product(GK_product_float, "product_float", SRC_NORM, TYPES[t], 8);
        }
}

#define EACH_QUANT(times, CALL)           \
    for (u32 i = 0; i < (times); i++)     \
        for (u32 t = 0; t < N_QUANT; t++) \
            CALL;

static void experts_in_1_multiplies(void **state)
{
    (void)state;
    check_seed(111);
    EACH_QUANT(4, try_experts_in(GK_experts_in_1, "experts_in_1", TYPES[t], 8))
}

/* Where it chooses them: all experts there can be, few outputs. */
static void experts_in_1_chooses(void **state)
{
    (void)state;
    check_seed(118);
    only_out = 1;
    for (u32 i = 0; i < 40; i++) {
        only_in = 32u << check_below(4);
        try_experts_in(GK_experts_in_1, "experts_in_1", TYPES[check_below(N_32)], 8);
    }
    only_in = only_out = 0;
}

/* Several units of 32 outputs in a tile of pairs, more rows than are staged at once: once a loop without an end. */
static void experts_in_writes_act_rows(void **state)
{
    (void)state;
    check_seed(117);
    u64 usual = budget;
    budget = 17 << 20; /* up to 16 rows */
    only_in = 2048;
    only_out = 128;
    EACH_QUANT(2, try_experts_in(GK_experts_in_1, "experts_in_1", TYPES[t], 8))
    EACH_QUANT(1, try_experts_in(GK_experts_in_2, "experts_in_2", TYPES[t], 16))
    only_in = only_out = 0;
    budget = usual;
}

static void experts_in_2_multiplies(void **state)
{
    (void)state;
    check_seed(112);
    EACH_QUANT(4, try_experts_in(GK_experts_in_2, "experts_in_2", TYPES[t], 16))
}

static void experts_in_many_multiplies(void **state)
{
    (void)state;
    check_seed(113);
    EACH_QUANT(4, try_experts_in(GK_experts_in_many, "experts_in_many", TYPES[t], GPU_MANY_COLS))
}

static void experts_out_1_multiplies(void **state)
{
    (void)state;
    check_seed(114);
    EACH_QUANT(2, try_experts_out(GK_experts_out_1, "experts_out_1", TYPES[t], 8, SRC_ACT, false))
    EACH_QUANT(2, try_experts_out(GK_experts_out_1, "experts_out_1", TYPES[t], 8, SRC_FLOAT, false))
    EACH_QUANT(2, try_experts_out(GK_experts_out_1, "experts_out_1", TYPES[t], 8, SRC_ACT, true))
    EACH_QUANT(2, try_experts_out(GK_experts_out_1, "experts_out_1", TYPES[t], 8, SRC_FLOAT, true))
}

static void experts_out_2_multiplies(void **state)
{
    (void)state;
    check_seed(115);
    EACH_QUANT(3, try_experts_out(GK_experts_out_2, "experts_out_2", TYPES[t], 16, SRC_ACT, false))
    EACH_QUANT(1, try_experts_out(GK_experts_out_2, "experts_out_2", TYPES[t], 16, SRC_FLOAT, false))
}

static void experts_out_many_multiplies(void **state)
{
    (void)state;
    check_seed(116);
    EACH_QUANT(4, try_experts_out(GK_experts_out_many, "experts_out_many", TYPES[t], GPU_MANY_COLS, SRC_ACT, false))
}

#define EACH_TWIN(times, CALL)                  \
    for (u32 i = 0; i < (times); i++)           \
        for (u32 t = 0; t < N_QUANT; t++)       \
            if (GPU_TWIN_TYPE((u32)TYPES[t]))   \
                CALL;

static void experts_in_twin_multiplies(void **state)
{
    (void)state;
    check_seed(118);
    EACH_TWIN(12, try_experts_in(GK_experts_in_twin, "experts_in_twin", TYPES[t], 8))
}

static void experts_out_twin_multiplies(void **state)
{
    (void)state;
    check_seed(119);
    EACH_TWIN(8, try_experts_out(GK_experts_out_twin, "experts_out_twin", TYPES[t], 8, SRC_ACT, false))
    EACH_TWIN(8, try_experts_out(GK_experts_out_twin, "experts_out_twin", TYPES[t], 8, SRC_FLOAT, false))
}

/* Experts with float weights, one matrix or gate and up: rows of the table (per_pair 1), or rows of pairs (2). */
static void try_float_experts(u32 type)
{
    struct scene s = {0};
    struct float_args *f = &s.args.float_;
    struct product_args *a = &f->p;
    struct matrices w[2];
    struct rows r;
    struct routing to;
    u32 n_in = any_in(type), n_out[2] = {any_out(), any_out()},
        rows = any_rows(33, (u64)6 * n_in * (n_out[0] + n_out[1]));
    f->per_pair = 1 + check_below(2);
    a->n_mats = 1 + check_below(2);
    a->source = SRC_ACT;
    inputs(&s, rows, &a->which);
    make_routing(&s, 14, &to, rows, 8);
    f->n_used = to.n_used;
    f->ids_at = to.ids_at;
    make_rows(&r, f->per_pair == 1 ? rows : to.pairs, n_in);
    make_source(&s, a, &r, false);
    for (u32 m = 0; m < a->n_mats; m++) {
        a->type[m] = type;
        a->n_out[m] = n_out[m];
        a->y_stride[m] = any_stride(n_out[m]);
        make_weights(&s, 3 + m, &w[m], type, n_in, n_out[m], to.n_experts);
        float_rows(&s, 9 + m, to.pairs + SPARE, a->y_stride[m]);
    }
    snapshot(&s);
    for (u32 i = 0; i < to.pairs; i++)
        for (u32 m = 0; m < a->n_mats; m++) {
            float y[128 + GPU_PANEL];
            multiply(&w[m], to.ids[i], &r.act[f->per_pair == 1 ? i / to.n_used : i], y);
            memcpy((float *)s.want[9 + m] + (u64)i * a->y_stride[m], y, n_out[m] * sizeof *y);
        }
    snprintf(s.what, sizeof s.what, "product_float %s per_pair %u, n_in %u, %u matrices, %u of %u experts",
             dtype_info(type)->name, f->per_pair, n_in, a->n_mats, to.n_used, to.n_experts);
    launch(&s, GK_product_float);
    for (u32 m = 0; m < a->n_mats; m++)
        free(w[m].cpu);
    free_rows(&r);
}

static void product_float_multiplies_experts(void **state)
{
    (void)state;
    check_seed(117);
    for (u32 i = 0; i < 6; i++)
        for (u32 t = N_QUANT; t < COUNT(TYPES); t++)
            try_float_experts(TYPES[t]);
}

/* ---- barriers ---- */

static void one_of_each(void)
{
    static const char *const NAME = "one of each";
    u32 type = TYPES[check_below(N_QUANT)], rows = check_below(2) ? 70 : 8;
    try_product(GK_product_1, NAME, SRC_ACT, type, rows);
    try_product(GK_product_1, NAME, SRC_FLOAT, type, 8);
    try_product(GK_product_1, NAME, SRC_NORM, type, 8);
    try_product(GK_product_2, NAME, SRC_ACT, type, rows);
    try_product(GK_product_many, NAME, SRC_ACT, type, rows);
    only_few = true;
    try_product(GK_dense_1, NAME, SRC_ACT, GT_Q4_0, rows);
    try_product(GK_dense_2, NAME, SRC_ACT, GT_Q8_0, rows);
    try_product(GK_dense_4, NAME, SRC_ACT, GT_Q4_0, rows);
    only_few = false;
    try_product(GK_product_float, NAME, SRC_NORM, TYPES[N_QUANT + check_below(3)], 8);
    try_product(GK_product_float, NAME, SRC_FLOAT, TYPES[N_QUANT + check_below(3)], rows);
    try_float_experts(TYPES[N_QUANT + check_below(3)]);
    if (check_below(2)) { /* long rows and several pairs of panels: act rows come with them */
        only_in = 2048;
        only_out = 128;
    }
    try_experts_in(GK_experts_in_1, NAME, type, 8);
    try_experts_in(GK_experts_in_2, NAME, type, 16);
    only_in = only_out = 0;
    try_experts_in(GK_experts_in_many, NAME, type, GPU_MANY_COLS);
    only_in = 64;
    only_out = 16;
    for (u32 i = 0; i < 4; i++) /* many rows: tiles of many heights, which are put into order */
        try_experts_in(GK_experts_in_many, NAME, GT_Q4_0, GPU_MANY_COLS);
    only_in = only_out = 0;
    try_experts_in(GK_experts_in_twin, NAME, GT_Q4_0, 8);
    try_experts_out(GK_experts_out_twin, NAME, GT_Q4_0, 8, SRC_FLOAT, false);
    try_experts_out(GK_experts_out_1, NAME, type, 8, check_below(2) ? SRC_ACT : SRC_FLOAT, false);
    try_experts_out(GK_experts_out_1, NAME, type, 8, check_below(2) ? SRC_ACT : SRC_FLOAT, true);
    try_experts_out(GK_experts_out_2, NAME, type, 16, SRC_ACT, false);
    try_experts_out(GK_experts_out_many, NAME, type, GPU_MANY_COLS, SRC_ACT, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_1_multiplies),       cmocka_unit_test(product_2_multiplies),
        cmocka_unit_test(product_many_multiplies),    cmocka_unit_test(dense_multiplies),
        cmocka_unit_test(product_float_multiplies),   cmocka_unit_test(product_float_multiplies_experts),
        cmocka_unit_test(experts_in_1_multiplies),    cmocka_unit_test(experts_in_1_chooses),
        cmocka_unit_test(experts_in_2_multiplies),    cmocka_unit_test(experts_in_writes_act_rows),
        cmocka_unit_test(experts_in_many_multiplies), cmocka_unit_test(experts_out_1_multiplies),
        cmocka_unit_test(experts_out_2_multiplies),   cmocka_unit_test(experts_out_many_multiplies),
        cmocka_unit_test(experts_in_twin_multiplies), cmocka_unit_test(experts_out_twin_multiplies),
        cmocka_unit_test(every_barrier_is_needed),
    };
    if (argc > 1) /* a test's name, or a pattern of names */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_emu, close_emu);
}
