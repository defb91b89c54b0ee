// Products of 8 to 64 rows on a GPU: product_2 (product_1 at 8 rows) beside k_dense.h's kernels, with the shapes of Qwen3-30B-A3B, each 48 times in a CUDA
// graph over the weights of 48 layers. All must leave the same bytes.
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/dense bench/dense.cu && build/dense [ROWS...]
// Microseconds a launch: the old kernel, dense_1, _2, _4; then the same with programmatic dependent launch. Status 1 when bytes differ.
#include "cuda_bench.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define X(name)                                                                                                         \
    __global__ void __launch_bounds__(256, GK_##name == GK_dense_4 ? 1 : 2)                                                \
        e_##name(const __grid_constant__ union gpu_args a, const __grid_constant__ struct bufs b)                       \
    {                                                                                                                   \
        extern __shared__ __align__(16) u32 shm[];                                                                      \
        struct ring ring;                                                                                               \
        struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31u, &ring};                \
        if (GPU_HAS_RING(GK_##name))                                                                                    \
            ring_open(at, shm);                                                                                         \
        if (!GPU_LOADS_FIRST(GK_##name))                                                                                \
            in_turn();                                                                                                  \
        k_##name(at, &a.product_, b, shm);                                                                              \
    }
X(product_1) X(product_2) X(dense_1) X(dense_2) X(dense_4)
#undef X

__global__ void e_norm(const __grid_constant__ union gpu_args a, const __grid_constant__ struct bufs b)
{
    extern __shared__ __align__(16) u32 shm[];
    struct ring ring;
    struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31u, &ring};
    k_norm(at, &a.norm_, b, shm);
}

enum { LAYERS = 48, D = 2048, KV = 512, O_IN = 4096, VOCAB = 151936, MAX_ROWS = 64 };

struct shape { // n_out 0: there is no such matrix
    const char *name;
    u32 n_in, type, n_out[3], layers;
    bool add;
};

struct variant {
    kernel *k;
    u32 shm, groups;
};

static u32 sms;
static u8 *in, *x, *x0, *att, *act_d, *act_o, *y[3], *w;
static bool failed;

static u64 matrix(u32 type, u32 n_in, u32 n_out)
{
    return (u64)((n_out + 15) / 16) * (GPU_PAD(n_in) / 256) * GPU_TILE_BYTES(type);
}

static void launch(const variant &v, const union gpu_args &a, const struct bufs &b, bool pdl, cudaStream_t s)
{
    launch_kernel(v.k, v.groups, v.shm, a, b, pdl, s);
}

static void one(const variant &v, const shape &s, u32 rows, u32 layer, bool pdl, cudaStream_t stream)
{
    union gpu_args a = {};
    struct product_args *p = &a.product_;
    struct bufs b = {{in, s.n_in == D ? act_d : act_o}};
    p->source = SRC_ACT, p->n_in = s.n_in, p->add = s.add, p->res_stride = D, p->rows = rows;
    u8 *from = w;
    for (u32 m = 0; m < 3; m++)
        from += layer * matrix(s.type, s.n_in, s.n_out[m]);
    for (u32 m = 0; m < 3 && s.n_out[m]; m++) {
        p->n_mats = m + 1, p->type[m] = s.type, p->n_out[m] = s.n_out[m], p->y_stride[m] = GPU_STRIDE(s.n_out[m]);
        b.p[3 + m] = from, b.p[9 + m] = y[m];
        from += matrix(s.type, s.n_in, s.n_out[m]);
    }
    b.p[12] = x;
    launch(v, a, b, pdl, stream);
}

static double time_us(const variant &v, const shape &s, u32 rows, bool pdl)
{
    return graph_us(6, [&](cudaStream_t stream) {
               for (u32 i = 0; i < s.layers; i++)
                   one(v, s, rows, i, pdl && i, stream);
           }) / s.layers;
}

// What a launch leaves in y and, from x as it was at first, in x.
static std::vector<u8> result(const variant &v, const shape &s, u32 rows, u32 layer)
{
    u64 bytes[3], all = 0;
    for (u32 m = 0; m < 3; m++) {
        all += bytes[m] = (u64)MAX_ROWS * GPU_STRIDE(s.n_out[m]) * 4;
        OK(cudaMemset(y[m], 0, bytes[m]));
    }
    std::vector<u8> to(all + MAX_ROWS * D * 4);
    OK(cudaMemcpy(x, x0, MAX_ROWS * D * 4, cudaMemcpyDeviceToDevice));
    one(v, s, rows, layer, false, 0);
    OK(cudaDeviceSynchronize());
    u8 *at = to.data();
    for (u32 m = 0; m < 3; at += bytes[m++])
        OK(cudaMemcpy(at, y[m], bytes[m], cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(at, x, MAX_ROWS * D * 4, cudaMemcpyDeviceToHost));
    return to;
}

static void compare(const shape &s, u32 rows)
{
    variant v[4] = {{rows <= 8 ? e_product_1 : e_product_2, GPU_SHM_PRODUCT(rows <= 8 ? 8u : 16u, s.n_in), 2 * sms},
                    {e_dense_1, GPU_SHM_DENSE(8u, s.n_in, GPU_TILE_BYTES(s.type)), sms}, {e_dense_2, GPU_SHM_DENSE(16u, s.n_in, GPU_TILE_BYTES(s.type)), sms},
                    {e_dense_4, GPU_SHM_DENSE(32u, s.n_in, GPU_TILE_BYTES(s.type)), sms}};
    bool same[4] = {};
    for (u32 l = 0; l < s.layers; l += 9) {
        std::vector<u8> want = result(v[0], s, rows, l);
        for (u32 k = 1; k < 4; k++)
            same[k] = (l == 0 || same[k]) && result(v[k], s, rows, l) == want;
    }
    printf("%2u rows %-10s", rows, s.name);
    for (u32 pdl = 0; pdl < 2; pdl++)
        for (u32 k = 0; k < 4; k++)
            printf(" %7.2f", time_us(v[k], s, rows, pdl));
    printf("  bytes:");
    for (u32 k = 1; k < 4; k++) {
        printf(" %s", same[k] ? "same" : "DIFFER");
        failed |= !same[k];
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const shape SHAPES[] = {{"qkv q4_0", D, GT_Q4_0, {O_IN, KV, KV}, LAYERS, false}, {"o q4_0", O_IN, GT_Q4_0, {D}, LAYERS, true},
                                   {"qkv q4_k", D, GT_Q4_K, {O_IN, KV, KV}, LAYERS, false}, {"o q4_k", O_IN, GT_Q4_K, {D}, LAYERS, true},
                                   {"qkv q6_k", D, GT_Q6_K, {O_IN, KV, KV}, LAYERS, false}, {"qkv q8_0", D, GT_Q8_0, {O_IN, KV, KV}, LAYERS, false},
                                   {"head q8_0", D, GT_Q8_0, {VOCAB - 7}, 3, false}, {"head q6_k", D, GT_Q6_K, {VOCAB - 7}, 3, false}};
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    sms = (u32)prop.multiProcessorCount;
    w = device(3 * matrix(GT_Q8_0, D, VOCAB), false);
    x = device(MAX_ROWS * D * 4, true), x0 = device(MAX_ROWS * D * 4, true), att = device(MAX_ROWS * O_IN * 4, true);
    act_d = device(MAX_ROWS * GPU_ACT_BYTES(D), false), act_o = device(MAX_ROWS * GPU_ACT_BYTES(O_IN), false), in = device(4096, false);
    for (u32 m = 0; m < 3; m++)
        y[m] = device((u64)MAX_ROWS * (m ? KV : VOCAB) * 4, false);
    for (u32 k = 0; k < 2; k++) {
        u32 header[16] = {MAX_ROWS, MAX_ROWS};
        union gpu_args a = {};
        OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
        a.norm_.n = a.norm_.x_stride = k ? O_IN : D, a.norm_.write_act = 1, a.norm_.ranks = 1;
        launch({e_norm, 0, sms}, a, {{in, k ? att : x0, 0, 0, k ? act_o : act_d}}, false, 0);
    }
    OK(cudaDeviceSynchronize());
    printf("%-18s %31s   %s\n", "", "old, dense_1, _2, _4", "the same, dependent launch");
    static const u32 ROWS[] = {8, 16, 32, 48, 64};
    for (u32 i = 0; i < (argc > 1 ? (u32)argc - 1 : 5u); i++) {
        u32 rows = argc > 1 ? (u32)atoi(argv[i + 1]) : ROWS[i], header[16] = {rows, rows};
        OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
        for (const shape &s : SHAPES)
            compare(s, rows);
    }
    return failed;
}
