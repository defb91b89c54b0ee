// Products and experts of few rows on a GPU: the kernels whose weights come through a ring (k_product.h, k_experts.h) beside those of k_few.h, with the
// shapes of Qwen3-30B-A3B in q4_0, each 48 times in a CUDA graph over the weights of 48 layers. Both must leave the same bytes.
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/few bench/few.cu && build/few [ROWS...]
// Microseconds a launch: the old kernel with 1 and 2 groups an SM, k_few.h's with 1 and 2, and the same with programmatic dependent launch, where a
// kernel's weights may come while the one before it ends. "layer": the four in a row, as a step has them without attention and router.
// -DGPU_FEW_TILES=2u: another number of weight tiles in registers. -DGROUPS=1: registers for one group an SM. Status 1 when bytes differ.
#include "cuda_bench.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#ifndef GROUPS
#define GROUPS 2
#endif
#define X(name, args)                                                                                                   \
    __global__ void __launch_bounds__(256, GROUPS) e_##name(const __grid_constant__ union gpu_args a, const __grid_constant__ struct bufs b) \
    {                                                                                                                   \
        extern __shared__ __align__(16) u32 shm[];                                                                      \
        struct ring ring;                                                                                               \
        struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31u, &ring};                \
        if (GPU_HAS_RING(GK_##name))                                                                                    \
            ring_open(at, shm);                                                                                         \
        if (!GPU_LOADS_FIRST(GK_##name))                                                                                \
            in_turn();                                                                                                  \
        k_##name(at, &a.args##_, b, shm);                                                                               \
    }
X(product_1, product) X(experts_in_1, experts_in) X(experts_out_1, experts_out) X(norm, norm)
X(few_1, product) X(few_2, product) X(few_4, product) X(few_in, few_in) X(few_out, few_out)
#undef X

enum { LAYERS = 48, D = 2048, QKV = 5120, O_IN = 4096, FF = 768, EXPERTS = 128, USED = 8, VOCAB = 151936, MAX_ROWS = 8, LIST = 65536 };
enum { IDS = 0, PAIRS = 16384, TILES = 32768, RANK_W = 49152 }; // of a layer's route lists

struct job { // a kernel, for each layer
    kernel *k;
    u32 shm, units;
    std::vector<union gpu_args> a;
    std::vector<struct bufs> b;
};

static u32 sms;
static u8 *in, *x, *norm_w, *att, *act_d, *act_o, *y, *exp_act, *exp_q, *logits, *route, *x0;
static u8 *w_qkv, *w_o, *w_gate, *w_up, *w_down, *w_head;
static bool failed;

static u64 matrix(u32 type, u32 n_in, u32 n_out)
{
    return (u64)((n_out + 15) / 16) * (GPU_PAD(n_in) / 256) * GPU_TILE_BYTES(type);
}

static void launch(const job &j, u32 layer, u32 per, bool pdl, cudaStream_t s)
{
    u32 groups = sms * per < j.units ? sms * per : j.units;
    launch_kernel(j.k, groups, j.shm, j.a[layer], j.b[layer], pdl, s);
}

static double time_us(const std::vector<const job *> &jobs, u32 n, u32 per, bool pdl)
{
    return graph_us(6, [&](cudaStream_t s) {
               for (u32 i = 0; i < n; i++)
                   for (const job *j : jobs)
                       launch(*j, i, per, pdl && i, s);
           }) / n;
}

// What a layer's launch leaves in `bytes` of p, from x as it was at first.
static std::vector<u8> result(const job &j, u32 layer, u32 per, const u8 *p, u64 bytes)
{
    std::vector<u8> v(bytes);
    OK(cudaMemset((void *)p, 0, p == x ? 0 : bytes));
    OK(cudaMemcpy(x, x0, MAX_ROWS * D * 4, cudaMemcpyDeviceToDevice));
    launch(j, layer, per, false, 0);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(v.data(), p, bytes, cudaMemcpyDeviceToHost));
    return v;
}

// One line: both kernels, and whether they agree on what they leave at p.
static void compare(const char *name, const job &old, const job &few, u32 count, double bytes, const u8 *p, u64 p_bytes)
{
    bool same = true;
    for (u32 per = 1; per <= GROUPS; per++)
        for (u32 l = 0; l < count; l += 5)
            same &= result(old, l, per, p, p_bytes) == result(few, l, per, p, p_bytes);
    failed |= !same;
    double best = 1e30;
    printf("%-28s", name);
    for (u32 k = 0; k < 3; k++)
        for (u32 per = 1; per <= GROUPS; per++) {
            double us = time_us({k ? &few : &old}, count, per, k == 2);
            best = k && us < best ? us : best;
            printf(" %7.2f", us);
        }
    printf("   %6.0f GB/s  %s\n", bytes / best * 1e-3, same ? "same bytes" : "BYTES DIFFER");
    fflush(stdout);
    OK(cudaMemcpy(x, x0, MAX_ROWS * D * 4, cudaMemcpyDeviceToDevice));
}

static job product(bool few, u32 n, u32 source, u32 type, u32 n_in, u32 n_out, const u8 *w, u64 step, const u8 *from, const u8 *to)
{
    job j;
    few &= n <= 4;
    j.k = !few ? e_product_1 : n == 1 ? e_few_1 : n == 2 ? e_few_2 : e_few_4;
    u32 high = n == 1 ? 1 : n == 2 ? 2 : 4;
    j.shm = few ? GPU_SHM_FEW(high, n_in, source != SRC_ACT) : GPU_SHM_PRODUCT(8u, n_in);
    j.units = (n_out + 15) / 16;
    for (u32 l = 0; l < LAYERS; l++) {
        union gpu_args a = {};
        struct product_args *p = &a.product_;
        p->source = source, p->n_in = n_in, p->x_stride = n_in, p->eps = 1e-6f, p->n_mats = 1, p->type[0] = type, p->n_out[0] = n_out, p->y_stride[0] = n_out;
        j.a.push_back(a);
        j.b.push_back({{in, (void *)from, norm_w, (void *)(w + l * step), 0, 0, 0, 0, 0, (void *)to}});
    }
    return j;
}

static job experts_in(bool few, u32 n, bool write_act)
{
    u64 gate = matrix(GT_Q4_0, D, FF);
    job j;
    j.k = few ? e_few_in : e_experts_in_1;
    j.shm = few ? GPU_SHM_FEW_IN(n, D) : GPU_SHM_EXPERTS_IN(8u, D);
    j.units = n * USED * (FF / (write_act ? 32 : 16));
    for (u32 l = 0; l < LAYERS; l++) {
        union gpu_args a = {};
        struct experts_in_args *p = &a.experts_in_;
        p->n_in = D, p->n_out = FF, p->y_stride = FF, p->type_gate = p->type_up = GT_Q4_0, p->n_used = USED, p->pairs_at = PAIRS, p->tiles_at = TILES,
        p->write_act = write_act, p->few = n, p->rows = n <= 2 ? n : 0, p->ids_at = IDS;
        j.a.push_back(a);
        j.b.push_back({{in, act_d, w_gate + l * gate * EXPERTS, w_up + l * gate * EXPERTS, exp_act, route + (u64)l * LIST * 4, exp_q}});
    }
    return j;
}

static job experts_out(bool few, u32 n, u32 source)
{
    u64 down = matrix(GT_Q4_0, FF, D);
    job j;
    j.k = few ? e_few_out : e_experts_out_1;
    j.shm = few ? GPU_SHM_FEW_OUT(n, USED, FF) : GPU_SHM_EXPERTS_FUSED(n * USED, FF);
    j.units = few ? n * (D / 16) : D / 16;
    for (u32 l = 0; l < LAYERS; l++) {
        union gpu_args a = {};
        struct experts_out_args *p = &a.experts_out_;
        p->source = source, p->n_in = FF, p->n_out = D, p->x_stride = FF, p->y_stride = D, p->res_stride = D, p->type = GT_Q4_0, p->n_used = USED,
        p->ids_at = IDS, p->w_at = RANK_W, p->pairs_at = PAIRS, p->tiles_at = TILES, p->per = 1, p->fused = n, p->rows = n <= 2 ? n : 0;
        j.a.push_back(a);
        j.b.push_back({{in, exp_act, exp_q, w_down + l * down * EXPERTS, 0, route + (u64)l * LIST * 4, x}});
    }
    return j;
}

// Rule 1 of n rows, once.
static void quantise(const u8 *from, u8 *to, u32 n, u32 n_in)
{
    job j = {e_norm, 0, n};
    union gpu_args a = {};
    a.norm_.n = n_in, a.norm_.x_stride = n_in, a.norm_.write_act = 1, a.norm_.ranks = 1;
    j.a.push_back(a);
    j.b.push_back({{in, (void *)from, 0, 0, to}});
    launch(j, 0, 1, false, 0);
}

// Ids, weights, pairs and tiles as route_group makes them. Returns the experts hit in a layer.
static double make_lists(u32 n)
{
    std::vector<u32> lists(LAYERS * LIST);
    u32 hit = 0;
    for (u32 l = 0; l < LAYERS; l++) {
        u32 *ids = &lists[(u64)l * LIST], *pairs = ids + PAIRS, *tiles = ids + TILES, np = 0;
        bool there[EXPERTS];
        for (u32 i = 0; i < n * USED; i++) {
            if (i % USED == 0)
                memset(there, 0, sizeof there);
            do
                ids[i] = (u32)rand() % EXPERTS;
            while (there[ids[i]]);
            there[ids[i]] = true;
            ids[RANK_W + i] = 0x3E000000 + (u32)rand() % 0x400000;
        }
        for (u32 e = 0; e < EXPERTS; e++) {
            u32 first = np;
            for (u32 i = 0; i < n * USED; i++)
                if (ids[i] == e)
                    pairs[np++] = i;
            if (np > first) {
                tiles[1 + 2 * tiles[0]] = e;
                tiles[2 + 2 * tiles[0]++] = first | (np - first) << 24;
                hit++;
            }
        }
    }
    OK(cudaMemcpy(route, lists.data(), lists.size() * 4, cudaMemcpyHostToDevice));
    return (double)hit / LAYERS;
}

static void rows(u32 n)
{
    u32 header[16] = {n, n};
    u64 qkv = matrix(GT_Q4_0, D, QKV), o = matrix(GT_Q4_0, O_IN, D), gate = matrix(GT_Q4_0, D, FF), head = matrix(GT_Q8_0, D, VOCAB);
    OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
    double hit = make_lists(n);
    quantise(x, act_d, n, D);
    quantise(att, act_o, n, O_IN);
    launch(experts_in(false, n, true), 0, 2, false, 0); // exp_act and exp_q
    OK(cudaDeviceSynchronize());
    printf("rows %u (%.1f experts a layer)  old, 1 and %u groups an SM;  few;  few, dependent launch\n", n, hit, GROUPS);
    u32 source = n == 1 ? SRC_NORM : SRC_ACT, att_source = n == 1 ? SRC_FLOAT : SRC_ACT;
    std::vector<job> old = {product(false, n, source, GT_Q4_0, D, QKV, w_qkv, qkv, n == 1 ? x : act_d, y),
                            product(false, n, att_source, GT_Q4_0, O_IN, D, w_o, o, n == 1 ? att : act_o, y), experts_in(false, n, false),
                            experts_out(false, n, SRC_FLOAT)};
    std::vector<job> few = {product(true, n, source, GT_Q4_0, D, QKV, w_qkv, qkv, n == 1 ? x : act_d, y),
                            product(true, n, att_source, GT_Q4_0, O_IN, D, w_o, o, n == 1 ? att : act_o, y), experts_in(true, n, true),
                            experts_out(true, n, SRC_ACT)};
    compare(n == 1 ? "qkv, norm" : "qkv", old[0], few[0], LAYERS, (double)qkv, y, n * QKV * 4);
    compare(n == 1 ? "o, floats" : "o", old[1], few[1], LAYERS, (double)o, y, n * D * 4);
    if (n == 1) {
        compare("qkv", product(false, n, SRC_ACT, GT_Q4_0, D, QKV, w_qkv, qkv, act_d, y), product(true, n, SRC_ACT, GT_Q4_0, D, QKV, w_qkv, qkv, act_d, y), LAYERS,
                (double)qkv, y, n * QKV * 4);
        compare("o", product(false, n, SRC_ACT, GT_Q4_0, O_IN, D, w_o, o, act_o, y), product(true, n, SRC_ACT, GT_Q4_0, O_IN, D, w_o, o, act_o, y), LAYERS,
                (double)o, y, n * D * 4);
    }
    compare("experts in", old[2], experts_in(true, n, false), LAYERS, hit * 2 * gate, exp_act, n * USED * FF * 4);
    compare("experts in, act", experts_in(false, n, true), few[2], LAYERS, hit * 2 * gate, exp_q, n * USED * GPU_ACT_BYTES(FF));
    launch(few[2], 0, 2, false, 0);
    compare("experts out, floats", old[3], experts_out(true, n, SRC_FLOAT), LAYERS, hit * gate, x, n * D * 4);
    compare("experts out", experts_out(false, n, SRC_ACT), few[3], LAYERS, hit * gate, x, n * D * 4);
    compare("head q8_0", product(false, n, SRC_ACT, GT_Q8_0, D, VOCAB, w_head, 0, act_d, logits), product(true, n, SRC_ACT, GT_Q8_0, D, VOCAB, w_head, 0, act_d, logits),
            4, (double)head, logits, (u64)n * VOCAB * 4);
    printf("%-28s", "layer");
    for (u32 k = 0; k < 3; k++)
        for (u32 per = 1; per <= GROUPS; per++) {
            std::vector<const job *> four;
            for (u32 i = 0; i < 4; i++)
                four.push_back(k ? &few[i] : &old[i]);
            printf(" %7.2f", time_us(four, LAYERS, per, k == 2));
        }
    printf("\n");
}

int main(int argc, char **argv)
{
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    sms = (u32)prop.multiProcessorCount;
    w_qkv = device(matrix(GT_Q4_0, D, QKV) * LAYERS, false), w_o = device(matrix(GT_Q4_0, O_IN, D) * LAYERS, false);
    w_gate = device(matrix(GT_Q4_0, D, FF) * EXPERTS * LAYERS, false), w_up = device(matrix(GT_Q4_0, D, FF) * EXPERTS * LAYERS, false);
    w_down = device(matrix(GT_Q4_0, FF, D) * EXPERTS * LAYERS, false), w_head = device(matrix(GT_Q8_0, D, VOCAB), false);
    x = device(MAX_ROWS * D * 4, true), x0 = device(MAX_ROWS * D * 4, true), norm_w = device(D * 4, true), att = device(MAX_ROWS * O_IN * 4, true);
    act_d = device(MAX_ROWS * GPU_ACT_BYTES(D), false), act_o = device(MAX_ROWS * GPU_ACT_BYTES(O_IN), false), y = device(MAX_ROWS * QKV * 4, false);
    exp_act = device(MAX_ROWS * USED * FF * 4, false), exp_q = device(MAX_ROWS * USED * GPU_ACT_BYTES(FF), false);
    logits = device((u64)MAX_ROWS * VOCAB * 4, false), in = device(4096, false), route = device((u64)LAYERS * LIST * 4, false);
    OK(cudaDeviceSynchronize());
    for (int i = 1; i < argc; i++)
        rows((u32)atoi(argv[i]));
    for (u32 n = 1; n <= MAX_ROWS && argc == 1; n *= 2)
        rows(n);
    return failed;
}
