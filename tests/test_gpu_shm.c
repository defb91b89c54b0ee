/* Shared memory of every launch that gpu_lower.c makes of a model, by shape: in a PS_METAL build at most the 32,768 bytes of Apple's GPUs, else
 * Hopper's 227 KB. Nothing runs here: that a kernel stays within what gpu_shm_bytes says is for the other tests, whose groups have no more. */
#include "check.h"

#include "device/dev_gpu.h"
#include "gpu/layout.h"

enum { MOST = PS_METAL ? 32 << 10 : 227 << 10 };

struct shape {
    const char *name;
    u32 d_model, n_heads, n_kv, d_head, d_ff, n_experts, n_used, n_vocab; /* d_ff: of an expert, where there are some */
};

static const struct shape SHAPES[] = {
    {"qwen3-30b-a3b", 2048, 32, 4, 128, 768, 128, 8, 151936},
    {"qwen3-235b-a22b", 4096, 64, 4, 128, 1536, 128, 8, 151936},
    {"mixtral", 4096, 32, 8, 128, 14336, 8, 2, 32000},
    {"256 experts", 7168, 128, 128, 128, 2048, 256, 8, 129280},
    {"1020 experts", 2048, 16, 4, 128, 512, 1020, 10, 151936},
    {"d_ff 2880", 2880, 64, 8, 64, 2880, 32, 4, 201088},
    {"a small mixture", 256, 8, 2, 32, 64, 8, 2, 512},
    {"llama 8b", 4096, 32, 8, 128, 14336, 0, 0, 128256},
    {"llama 70b", 8192, 64, 8, 128, 28672, 0, 0, 128256},
    {"qwen2 0.5b", 896, 14, 2, 64, 4864, 0, 0, 151936},
    {"smollm2", 576, 9, 3, 64, 1536, 0, 0, 49152},
    {"heads of 256", 3072, 16, 16, 256, 24576, 0, 0, 256000},
    {"heads of 256, 8 share", 2048, 8, 1, 256, 16384, 0, 0, 256000},
    {"a small one", 96, 4, 2, 24, 160, 0, 0, 300},
};

static const u32 ROWS[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048};

static const struct shape *here;
static u32 rows;

static u32 fits(const char *what, enum gpu_kernel kernel, const union gpu_args *a)
{
    u32 bytes = gpu_shm_bytes(kernel, a);
    if (bytes > MOST)
        fail_msg("%s, %u rows: %s needs %u bytes, there are %u", here->name, rows, what, bytes, (u32)MOST);
    return bytes;
}

static u32 least(u32 a, u32 b)
{
    return a < b ? a : b;
}

/* In Apple's shape all products take rows of any length. In the other the lowering makes act rows first where product_1 cannot, and where few of those
 * do not fit either the kernel for many takes them. */
static void product(const char *what, u32 n_in, u32 source)
{
    union gpu_args a = {.product_ = {.source = source, .n_in = n_in, .n_mats = 1}};
    if (PS_METAL)
        fits(what, GK_product_1, &a);
    a.product_.source = SRC_ACT;
    if (PS_METAL)
        fits(what, GK_product_2, &a);
    fits(what, GK_product_many, &a);
    if (n_in <= 4096) {
        fits(what, GK_product_1, &a);
        fits(what, GK_product_2, &a);
    }
}

static void floats(u32 source, u32 n_in, u32 n_out, u32 per_pair)
{
    union gpu_args a = {.float_ = {.p = {.source = source, .n_in = n_in, .n_mats = 1, .n_out = {n_out}}, .per_pair = per_pair, .rows = rows}};
    fits("product_float", GK_product_float, &a);
}

static void products(void)
{
    u32 d_att = here->n_heads * here->d_head;
    union gpu_args norm = {.norm_ = {.n = here->d_model, .has_norm = 1}};
    fits("norm", GK_norm, &norm);
    product("qkv", here->d_model, rows == 1 ? SRC_NORM : SRC_ACT);
    product("o", d_att, rows == 1 ? SRC_FLOAT : SRC_ACT);
    product("head", here->d_model, SRC_ACT);
    floats(rows == 1 ? SRC_NORM : SRC_FLOAT, here->d_model, d_att, 0);
    floats(SRC_FLOAT, d_att, here->d_model, 0);
    floats(SRC_FLOAT, here->d_model, here->n_vocab, 0);
    if (!here->n_experts) {
        product("down", here->d_ff, SRC_ACT);
        floats(SRC_FLOAT, here->d_ff, here->d_model, 0);
    }
}

static void attention(void)
{
    for (u32 q8 = 0; q8 < 2; q8++) {
        union gpu_args a = {.attend_ = {.n_heads = here->n_heads, .n_kv = here->n_kv, .d_head = here->d_head, .kv_q8 = q8}};
        if (q8 && here->d_head % 32)
            continue;
        u32 share = here->n_heads / here->n_kv, heads = gpu_item_heads(share, here->d_head, q8);
        assert_true(heads >= 1 && heads <= 8 && share % heads == 0);
        fits(q8 ? "attend q8_0" : "attend f16", GK_attend, &a);
        fits(q8 ? "prompt q8_0" : "prompt f16", GK_prompt, &a);
    }
    union gpu_args a = {0};
    fits("store", GK_store, &a);
    fits("pick_join", GK_pick_join, &a);
}

static void experts(void)
{
    union gpu_args route = {.route_ = {.n_experts = here->n_experts}};
    union gpu_args router = {.router_ = {.n_in = here->d_model, .n_out = here->n_experts, .rows = rows}};
    union gpu_args in = {.experts_in_ = {.n_in = here->d_model, .n_out = here->d_ff}};
    union gpu_args out = {.experts_out_ = {.source = SRC_ACT, .n_in = here->d_ff, .n_used = here->n_used}};
    fits("route_group", GK_route_group, &route);
    fits("group", GK_group, &route);
    fits("router", GK_router, &router);
    floats(SRC_FLOAT, here->d_model, here->n_experts, 0);
    floats(SRC_FLOAT, here->d_model, here->d_ff, 1);
    fits("experts_in_1", GK_experts_in_1, &in);
    if (PS_METAL || gpu_shm_bytes(GK_experts_out_1, &out) <= MOST)
        fits("experts_out_1", GK_experts_out_1, &out);
    if (PS_METAL) {
        fits("experts_in_2", GK_experts_in_2, &in);
        fits("experts_out_2", GK_experts_out_2, &out);
    }
    fits("experts_in_many", GK_experts_in_many, &in);
    fits("experts_out_many", GK_experts_out_many, &out);
    out.experts_out_.fused = least(rows, 4);
    if (PS_METAL && GPU_EXPERTS_IN_ACT(here->d_model, here->d_ff)) /* the act rows of experts_in */
        fits("experts_out_1, fused", GK_experts_out_1, &out);
}

static void every_launch_fits(void **state)
{
    (void)state;
    for (u32 s = 0; s < COUNT(SHAPES); s++)
        for (u32 r = 0; r < COUNT(ROWS); r++) {
            here = &SHAPES[s];
            rows = ROWS[r];
            products();
            attention();
            if (here->n_experts)
                experts();
        }
}

/* Nothing but the kernel's own: no ring before it. */
static void there_is_no_ring_for_metal(void **state)
{
    (void)state;
    union gpu_args a = {.product_ = {.source = SRC_ACT, .n_in = 1024, .n_mats = 1}};
    assert_int_equal(gpu_shm_bytes(GK_product_1, &a) == 0, PS_METAL); /* short rows: a SIMD group's own */
    assert_int_equal(RING_WORDS == 0, PS_METAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_launch_fits), cmocka_unit_test(there_is_no_ring_for_metal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
