/* Kernels of few rows (gpu/k_few.h) on the emulator against the scalar reference on the CPU (gpu_scene.h); each
 * barrier is taken away in turn. */
#include "gpu_scene.h"

static const enum gpu_kernel PRODUCTS[] = {GK_few_1, GK_few_2, GK_few_4};
static const char *const NAMES[] = {"few_1", "few_2", "few_4"};

static void any_product(u32 k, u32 source)
{
    for (u32 t = 0; t < COUNT(FEW_TYPES); t++)
        try_product(PRODUCTS[k], NAMES[k], source, FEW_TYPES[t], 1u << k);
}

static void few_multiplies(void **state)
{
    (void)state;
    check_seed(141);
    for (u32 i = 0; i < 5; i++)
        for (u32 k = 0; k < COUNT(PRODUCTS); k++)
            for (u32 source = SRC_ACT; source <= SRC_FLOAT; source++)
                any_product(k, source);
}

/* The shapes that the kernels are made for: whole rounds, several of them, rows that are two rounds' share. */
static void few_multiplies_long_rows(void **state)
{
    static const u32 LONG[] = {768, 2048, 4096, 2304};
    (void)state;
    check_seed(142);
    u64 usual = budget;
    budget = 4 << 20;
    for (u32 i = 0; i < COUNT(LONG); i++)
        for (u32 k = 0; k < COUNT(PRODUCTS); k++) {
            only_in = LONG[i];
            any_product(k, k ? SRC_ACT : check_below(3));
        }
    only_in = 0;
    budget = usual;
}

static void each_type(void (*try)(u32 type), u32 times)
{
    for (u32 i = 0; i < times; i++)
        for (u32 t = 0; t < COUNT(FEW_TYPES); t++)
            try(FEW_TYPES[t]);
}

static void any_in_experts(u32 type)
{
    try_experts_in(GK_few_in, "few_in", type, 8);
}

static void any_out_experts(u32 type)
{
    try_experts_out(GK_few_out, "few_out", type, 8, check_below(2) ? SRC_ACT : SRC_FLOAT, true);
}

static void few_in_multiplies(void **state)
{
    (void)state;
    check_seed(143);
    each_type(any_in_experts, 30);
    u64 usual = budget;
    budget = 4 << 20;
    only_in = 2048;
    only_out = 96;
    each_type(any_in_experts, 2);
    budget = usual;
    only_out = 1; /* and 128 experts */
    for (u32 i = 0; i < 40; i++) {
        only_in = 32u << check_below(4);
        any_in_experts(FEW_TYPES[check_below(2)]);
    }
    only_in = only_out = 0;
}

static void few_out_multiplies(void **state)
{
    (void)state;
    check_seed(144);
    each_type(any_out_experts, 12);
    only_in = 768;
    each_type(any_out_experts, 2);
    only_in = 0;
}

static void one_of_each(void)
{
    u32 type = any_type(256);
    only_in = check_below(2) ? 2048 : 0;
    for (u32 k = 0; k < COUNT(PRODUCTS); k++)
        try_product(PRODUCTS[k], "one of each", k < 2 ? SRC_NORM : check_below(3), type, 1u << k);
    only_in = 0;
    any_in_experts(type);
    any_out_experts(type);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_multiplies),
        cmocka_unit_test(few_multiplies_long_rows),
        cmocka_unit_test(few_in_multiplies),
        cmocka_unit_test(few_out_multiplies),
        cmocka_unit_test(every_barrier_is_needed),
    };
    only_few = true;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_emu, close_emu);
}
