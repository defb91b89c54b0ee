// Times kernels of src/gpu one by one on a GPU, with the shapes of Qwen3-30B-A3B in q4_0: each kernel 48 times in a CUDA graph, over the weights of 48 layers
// (so that they come from memory, not from the cache), random bytes for weights. Prints microseconds a launch and GB/s of weights.
//   nvcc -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/kernels bench/kernels.cu && build/kernels [ROWS...]
// What it computes is not looked at: tests and verify do that.
#include "gpu/kernels.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#ifndef GROUPS
#define GROUPS 2
#endif
#define X(name, args)                                                                                                   \
    __global__ void __launch_bounds__(256, GROUPS) e_##name(const __grid_constant__ union gpu_args a, struct bufs b)          \
    {                                                                                                                   \
        extern __shared__ u32 shm[];                                                                                    \
        struct ring ring;                                                                                               \
        struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31, &ring};                 \
        if (GPU_HAS_RING(GK_##name))                                                                                    \
            ring_open(at, shm);                                                                                         \
        k_##name(at, &a.args##_, b, shm);                                                                               \
    }
X(product_1, product) X(product_2, product) X(product_many, product) X(experts_in_1, experts_in) X(experts_out_1, experts_out)
X(experts_in_2, experts_in) X(experts_out_2, experts_out) X(experts_in_many, experts_in) X(experts_out_many, experts_out) X(experts_in_twin, experts_in) X(experts_out_twin, experts_out) X(route_group, route) X(product_float, float) X(router, router) X(norm, norm) X(combine_norm, combine_norm)
#undef X

__global__ void __launch_bounds__(256, 2) e_nothing(const __grid_constant__ union gpu_args, struct bufs) {}

#define OK(call)                                                                                                        \
    do {                                                                                                                \
        cudaError_t e_ = (call);                                                                                        \
        if (e_ != cudaSuccess) {                                                                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_));                                                 \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

enum { LAYERS = 48, D = 2048, QKV = 5120, O_IN = 4096, FF = 768, EXPERTS = 128, USED = 8, VOCAB = 151936 };

__global__ void fill(u32 *p, u64 n, u32 seed)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        u32 x = (u32)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        p[i] = (x ^ x >> 13) & 0x3BFF3BFFu; // halves below 1
    }
}

static u8 *device(u64 bytes)
{
    u8 *p;
    OK(cudaMalloc(&p, bytes));
    fill<<<1024, 256>>>((u32 *)p, bytes / 4, (u32)bytes);
    return p;
}

static u64 matrix(u32 type, u32 n_in, u32 n_out)
{
    return (u64)((n_out + 15) / 16) * (GPU_PAD(n_in) / 256) * GPU_TILE_BYTES(type);
}

typedef void kernel(const union gpu_args, struct bufs);

static void time_it(const char *name, kernel *k, union gpu_args *args, struct bufs *b, u32 n, u32 shm, u32 groups, double bytes)
{
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t x;
    cudaEvent_t t0, t1;
    OK(cudaStreamCreate(&s));
    OK(cudaEventCreate(&t0));
    OK(cudaEventCreate(&t1));
    OK(cudaFuncSetAttribute((const void *)k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shm));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (u32 i = 0; i < n; i++) {
        k<<<groups, 256, shm, s>>>(args[i], b[i]);
    }
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphInstantiate(&x, g, 0));
    float best = 1e30f;
    for (u32 r = 0; r < 6; r++) {
        OK(cudaEventRecord(t0, s));
        OK(cudaGraphLaunch(x, s));
        OK(cudaEventRecord(t1, s));
        OK(cudaStreamSynchronize(s));
        float ms;
        OK(cudaEventElapsedTime(&ms, t0, t1));
        if (ms < best)
            best = ms;
    }
    int occ;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&occ, (const void *)k, 256, shm));
    printf("%-26s %5u groups (%d a SM)  %8.2f us  %7.0f GB/s\n", name, groups, occ, best * 1000 / n, bytes / (best / n) * 1e-6);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    u32 sms = (u32)prop.multiProcessorCount;
    u64 qkv = matrix(GT_Q4_0, D, QKV), o = matrix(GT_Q4_0, O_IN, D), gate = matrix(GT_Q4_0, D, FF), down = matrix(GT_Q4_0, FF, D), head = matrix(GT_Q8_0, D, VOCAB);
    u8 *w_qkv = device(qkv * LAYERS), *w_o = device(o * LAYERS), *w_gate = device(gate * EXPERTS * LAYERS), *w_up = device(gate * EXPERTS * LAYERS),
       *w_down = device(down * EXPERTS * LAYERS), *w_head = device(head), *w_router = device((u64)D * EXPERTS * 4 * LAYERS);
    u32 max_rows = 512;
    u8 *x = device(max_rows * D * 4), *norm = device(D * 4), *y = device((u64)max_rows * QKV * 4), *att = device(max_rows * O_IN * 4), *in = device(4096),
       *act = device((u64)max_rows * GPU_ACT_BYTES(O_IN)), *exp_act = device((u64)max_rows * USED * FF * 4), *exp_q = device((u64)max_rows * USED * GPU_ACT_BYTES(FF)),
       *out = device((u64)max_rows * USED * D * 4), *logits = device((u64)64 * VOCAB * 4), *route2 = device(1 << 20), *route;
    std::vector<u32> lists(LAYERS * 65536);
    OK(cudaMalloc(&route, lists.size() * 4));
    OK(cudaDeviceSynchronize());
    std::vector<union gpu_args> args(LAYERS);
    std::vector<struct bufs> b(LAYERS);
    std::vector<u32> rows;
    for (int i = 1; i < argc; i++)
        rows.push_back((u32)atoi(argv[i]));
    if (rows.empty())
        rows = {1, 8, 64};
    for (u32 n : rows) {
        u32 header[16] = {n, n};
        OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
        printf("rows %u\n", n);
        
        bool many = n > 128;
        double hit = 0;
        u32 tile_rows = many ? 32 : n > 64 ? 16 : 8;
        for (u32 l = 0; l < LAYERS; l++) { // ids, weights, pairs, tiles as route_group makes them
            u32 *at = &lists[l * 65536], *ids = at, *pairs = at + 16384, *tiles = at + 32768, *w = at + 49152, np = 0, nt = 0;
            for (u32 r = 0; r < n; r++)
                for (u32 k = 0; k < USED; k++) {
                    u32 e;
                    bool again;
                    do {
                        e = (u32)rand() % EXPERTS;
                        again = false;
                        for (u32 j = 0; j < k; j++)
                            again |= ids[r * USED + j] == e;
                    } while (again);
                    ids[r * USED + k] = e;
                    w[r * USED + k] = 0x3E000000;
                }
            for (u32 e = 0; e < EXPERTS; e++) {
                u32 first = np;
                for (u32 i = 0; i < n * USED; i++)
                    if (ids[i] == e)
                        pairs[np++] = i;
                hit += np > first;
                for (u32 i = first; i < np; i += tile_rows) {
                    tiles[1 + 2 * nt] = e;
                    tiles[2 + 2 * nt++] = i | (np - i < tile_rows ? np - i : tile_rows) << 24;
                }
            }
            tiles[0] = nt;
        }
        hit /= LAYERS;
        OK(cudaMemcpy(route, lists.data(), lists.size() * 4, cudaMemcpyHostToDevice));
        for (u32 per = 1; per <= GROUPS; per++) {
            u32 g = sms * per;
            auto product = [&](const char *name, u32 type, u32 n_in, u32 n_out, u32 source, u8 *w, u64 step, u8 *from, u8 *to, u32 stride, u32 count) {
                for (u32 l = 0; l < LAYERS; l++) {
                    memset(&args[l], 0, sizeof args[l]);
                    memset(&b[l], 0, sizeof b[l]);
                    struct product_args *a = &args[l].product_;
                    a->source = source, a->n_in = n_in, a->x_stride = n_in, a->eps = 1e-6f, a->n_mats = 1, a->type[0] = type, a->n_out[0] = n_out, a->y_stride[0] = stride;
                    void *p[] = {in, from, norm, w + l * step, 0, 0, 0, 0, 0, to};
                    memcpy(b[l].p, p, sizeof p);
                }
                u32 cols = n <= 8 ? 8 : 16;
                u32 shm = many ? GPU_SHM_MANY : GPU_SHM_PRODUCT(cols, n_in);
                kernel *k = many ? e_product_many : cols == 8 ? e_product_1 : e_product_2;
                time_it(name, k, args.data(), b.data(), count, shm, g, (double)matrix(type, n_in, n_out));
            };
                        if (n <= 8)
                product("qkv, norm", GT_Q4_0, D, QKV, SRC_NORM, w_qkv, qkv, x, y, QKV, LAYERS);
            product("qkv", GT_Q4_0, D, QKV, SRC_ACT, w_qkv, qkv, act, y, QKV, LAYERS);
            if (n <= 8)
                product("o, floats", GT_Q4_0, O_IN, D, SRC_FLOAT, w_o, o, att, y, D, LAYERS);
            product("o", GT_Q4_0, O_IN, D, SRC_ACT, w_o, o, act, y, D, LAYERS);
            if (n <= 64)
                product("head q8_0", GT_Q8_0, D, VOCAB, SRC_ACT, w_head, 0, act, logits, VOCAB, 4);
            time_it("nothing", e_nothing, args.data(), b.data(), LAYERS, 0, g, 0);
            for (u32 l = 0; l < LAYERS; l++) {
                memset(&args[l], 0, sizeof args[l]);
                memset(&b[l], 0, sizeof b[l]);
                struct product_args *a = &args[l].float_.p;
                a->source = n <= 8 ? SRC_NORM : SRC_FLOAT, a->n_in = D, a->x_stride = D, a->eps = 1e-6f, a->n_mats = 1, a->type[0] = GT_F32, a->n_out[0] = EXPERTS, a->y_stride[0] = EXPERTS;
                a->write_act = n <= 8, args[l].float_.rows = n;
                void *p[] = {in, x, norm, w_router + (u64)l * D * EXPERTS * 4, 0, 0, 0, 0, 0, y, 0, 0, 0, act};
                memcpy(b[l].p, p, sizeof p);
            }
            time_it("router f32", e_product_float, args.data(), b.data(), LAYERS, GPU_SHM_FLOAT(n < 8 ? n : 8, EXPERTS), g, (double)D * EXPERTS * 4);
            for (u32 within = 0; within < (n <= 8 ? 2u : 1u); within++) {
              for (u32 l = 0; l < LAYERS; l++) {
                memset(&args[l], 0, sizeof args[l]);
                memset(&b[l], 0, sizeof b[l]);
                struct router_args *a = &args[l].router_;
                a->source = within ? SRC_NORM : SRC_FLOAT, a->n_in = D, a->n_out = EXPERTS, a->x_stride = D, a->eps = 1e-6f, a->write_act = within, a->rows = n;
                void *p[] = {in, x, norm, w_router + (u64)l * D * EXPERTS * 4, y, act};
                memcpy(b[l].p, p, sizeof p);
            }
              time_it(within ? "router, in parts, norm" : "router, in parts", e_router, args.data(), b.data(), LAYERS, GPU_SHM_ROUTER(n), g, (double)D * EXPERTS * 4);
            }
            for (u32 l = 0; l < LAYERS; l++) {
                memset(&args[l], 0, sizeof args[l]);
                memset(&b[l], 0, sizeof b[l]);
                struct norm_args *a = &args[l].norm_;
                a->n = D, a->x_stride = D, a->h_stride = D, a->has_norm = 1, a->write_act = a->write_h = 1, a->ranks = 1, a->eps = 1e-6f;
                void *p[] = {in, x, norm, y, act};
                memcpy(b[l].p, p, sizeof p);
            }
            time_it("norm", e_norm, args.data(), b.data(), LAYERS, GPU_SHM_NORM(D), n < g ? n : g, 0);
            for (u32 l = 0; l < LAYERS; l++) {
                memset(&args[l], 0, sizeof args[l]);
                struct combine_norm_args *a = &args[l].combine_norm_;
                a->combine.n = D, a->combine.n_used = USED, a->combine.w_at = 49152, a->combine.y_stride = D, a->combine.x_stride = D;
                a->norm.n = D, a->norm.h_stride = D, a->norm.write_act = 1, a->norm.eps = 1e-6f;
                void *p[] = {in, out, route, 0, 0, x, norm, y, act};
                memcpy(b[l].p, p, sizeof p);
            }
            time_it("combine, norm", e_combine_norm, args.data(), b.data(), LAYERS, GPU_SHM_NORM(D), n < g ? n : g, 0);
            for (u32 l = 0; l < LAYERS && n <= 64; l++) {
                memset(&args[l], 0, sizeof args[l]);
                memset(&b[l], 0, sizeof b[l]);
                struct route_args *a = &args[l].route_;
                a->n_experts = EXPERTS, a->n_used = USED, a->stride = EXPERTS, a->used_norm = 1, a->used_scale = 1, a->ids_at = 0, a->w_at = 4096, a->pairs_at = 8192, a->tiles_at = 16384;
                a->tile_rows = 8, a->per_row = n <= 4;
                void *p[] = {in, y, route2};
                memcpy(b[l].p, p, sizeof p);
            }
            if (n <= 64)
                time_it("route + group", e_route_group, args.data(), b.data(), LAYERS, GPU_SHM_ROUTE(EXPERTS), 1, 0);
            for (u32 l = 0; l < LAYERS && n <= 64; l++)
                args[l].route_.n_parts = D / 256, args[l].route_.stride = D / 256 * EXPERTS, args[l].route_.parts_stride = EXPERTS;
            if (n <= 64)
                time_it("route + group, of parts", e_route_group, args.data(), b.data(), LAYERS, GPU_SHM_ROUTE(EXPERTS), 1, 0);
            for (u32 l = 0; l < LAYERS; l++) {
                memset(&args[l], 0, sizeof args[l]);
                struct experts_in_args *a = &args[l].experts_in_;
                a->n_in = D, a->n_out = FF, a->y_stride = FF, a->type_gate = a->type_up = GT_Q4_0, a->n_used = USED, a->pairs_at = 16384, a->tiles_at = 32768, a->write_act = !many;
                void *p[] = {in, act, w_gate + l * gate * EXPERTS, w_up + l * gate * EXPERTS, exp_act, route + l * 65536 * 4, exp_q};
                memcpy(b[l].p, p, sizeof p);
            }
            time_it("experts in", many ? e_experts_in_many : tile_rows == 8 ? e_experts_in_1 : e_experts_in_2, args.data(), b.data(), LAYERS,
                    many ? GPU_SHM_MANY_IN : GPU_SHM_EXPERTS_IN(tile_rows, D), g, hit * 2 * gate);
            if (tile_rows == 8)
                time_it("experts in, twin", e_experts_in_twin, args.data(), b.data(), LAYERS, GPU_SHM_TWIN(GT_Q4_0, D), g, hit * 2 * gate);
            for (u32 fused = 0; fused <= (n <= 4 ? 1u : 0u); fused++) {
                for (u32 l = 0; l < LAYERS; l++) {
                    memset(&args[l], 0, sizeof args[l]);
                    struct experts_out_args *a = &args[l].experts_out_;
                    a->source = SRC_ACT, a->n_in = FF, a->n_out = D, a->x_stride = FF, a->y_stride = D, a->res_stride = D, a->type = GT_Q4_0, a->n_used = USED,
                    a->ids_at = 0, a->w_at = 49152, a->pairs_at = 16384, a->tiles_at = 32768, a->per = 1, a->fused = fused ? n : 0;
                    void *p[] = {in, exp_act, exp_q, w_down + l * down * EXPERTS, out, route + l * 65536 * 4, x};
                    memcpy(b[l].p, p, sizeof p);
                }
                time_it(fused ? "experts out, joined" : "experts out", many ? e_experts_out_many : tile_rows == 8 ? e_experts_out_1 : e_experts_out_2, args.data(), b.data(), LAYERS,
                        many ? GPU_SHM_MANY : fused ? GPU_SHM_EXPERTS_FUSED(n * USED, FF) : GPU_SHM_EXPERTS_OUT(tile_rows, FF), g, hit * down);
                for (u32 floats = 0; floats < 2 && !fused && tile_rows == 8; floats++) {
                    for (u32 l = 0; l < LAYERS; l++)
                        args[l].experts_out_.source = floats ? SRC_FLOAT : SRC_ACT;
                    time_it(floats ? "experts out, twin, floats" : "experts out, twin", e_experts_out_twin, args.data(), b.data(), LAYERS, GPU_SHM_TWIN(GT_Q4_0, FF), g, hit * down);
                }
            }
        }
    }
    return 0;
}
