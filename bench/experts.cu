// The experts of 3 to 64 rows on a GPU (k_twin.h), with the shapes of Qwen3-30B-A3B in q4_0 and experts chosen at random, over the weights of 48 layers:
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/experts bench/experts.cu && build/experts [ROWS...]
// Microseconds. "alone": a launch of experts_in, and of experts_out, in a CUDA graph of 48, plain and with dependent launch: instructions stay where they are.
// "in a layer": from the first group's begin to the last one's end by the clock of the chip, in a graph of a stand-in for routing, experts_in, experts_out,
// combine_norm for each layer: what a step meets. "layer": the four, plain and with dependent launch. Status 1 when bytes differ from experts_in_1's or _out_1's.
#include "cuda_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned long long ull;

static __device__ ull now(void)
{
    ull t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) : : "memory");
    return t;
}

#define X(name, args)                                                                                                   \
    __global__ void __launch_bounds__(256, 2) e_##name(const __grid_constant__ union gpu_args a, const __grid_constant__ struct bufs b, ull *clock) \
    {                                                                                                                   \
        extern __shared__ __align__(16) u32 shm[];                                                                      \
        struct ring ring;                                                                                               \
        struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31u, &ring};                \
        ull begin = clock ? now() : 0;                                                                                  \
        if (GPU_HAS_RING(GK_##name))                                                                                    \
            ring_open(at, shm);                                                                                         \
        if (!GPU_LOADS_FIRST(GK_##name))                                                                                \
            in_turn();                                                                                                  \
        k_##name(at, &a.args##_, b, shm);                                                                               \
        if (!clock)                                                                                                     \
            return;                                                                                                     \
        __syncthreads();                                                                                                \
        if (threadIdx.x == 0) {                                                                                         \
            clock[2 * blockIdx.x] = begin;                                                                              \
            clock[2 * blockIdx.x + 1] = now();                                                                          \
        }                                                                                                               \
    }
X(experts_in_1, experts_in) X(experts_out_1, experts_out) X(experts_in_twin, experts_in) X(experts_out_twin, experts_out) X(combine_norm, combine_norm) X(norm, norm)
#undef X

enum { LAYERS = 48, D = 2048, FF = 768, EXPERTS = 128, USED = 8, MAX_ROWS = 64, LIST = 65536, CLOCK = 1024 };
enum { IDS = 0, PAIRS = 16384, TILES = 32768, RANK_W = 49152 }; // of a layer's route lists

// What routing leaves in the cache: the layer's lists and act rows, written anew.
__global__ void routing(volatile u32 *lists, volatile u32 *act, u32 n_act)
{
    in_turn();
    for (u32 part = 0; part < 4; part++)
        lists[part * (LIST / 4) + threadIdx.x] = lists[part * (LIST / 4) + threadIdx.x];
    for (u32 i = threadIdx.x; i < n_act; i += blockDim.x)
        act[i] = act[i];
}

static u64 matrix(u32 n_in, u32 n_out)
{
    return (u64)((n_out + 15) / 16) * (GPU_PAD(n_in) / 256) * GPU_TILE_BYTES(GT_Q4_0);
}

struct job { // a kernel, for each layer
    const void *k;
    u32 shm, units;
    std::vector<union gpu_args> a;
    std::vector<struct bufs> b;
};

static u32 sms;
static u8 *in, *x, *norm_w, *act_d, *exp_act, *y, *h, *hq, *route, *w_gate, *w_up, *w_down;
static ull *clocks;
static bool failed;

static cudaLaunchConfig_t shape(cudaLaunchAttribute *attr, u32 groups, u32 threads, u32 shm, bool pdl, cudaStream_t s)
{
    attr->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr->val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(groups);
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shm;
    c.stream = s;
    c.attrs = attr;
    c.numAttrs = pdl;
    return c;
}

static void launch(const job &j, u32 layer, bool pdl, cudaStream_t s, ull *clock)
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t c = shape(&attr, std::min(2 * sms, j.units), GPU_THREADS, j.shm, pdl, s);
    union gpu_args a = j.a[layer];
    struct bufs b = j.b[layer];
    void *args[] = {&a, &b, &clock};
    OK(cudaFuncSetAttribute(j.k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)j.shm));
    OK(cudaLaunchKernelExC(&c, j.k, args));
}

// Of a graph of all layers, each job in turn: microseconds of each by the clock, and behind them of a layer.
static std::vector<double> time_us(const std::vector<const job *> &jobs, bool pdl, bool clocked)
{
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    cudaEvent_t t0, t1;
    u32 n = (u32)jobs.size();
    OK(cudaStreamCreate(&s));
    OK(cudaEventCreate(&t0));
    OK(cudaEventCreate(&t1));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (u32 l = 0; l < LAYERS; l++) {
        cudaLaunchAttribute attr = {};
        cudaLaunchConfig_t c = shape(&attr, 1, 1024, 0, pdl, s);
        if (n > 1)
            OK(cudaLaunchKernelEx(&c, routing, (volatile u32 *)(route + (u64)l * LIST * 4), (volatile u32 *)act_d, MAX_ROWS * GPU_ACT_BYTES(D) / 4));
        for (u32 k = 0; k < n; k++)
            launch(*jobs[k], l, pdl, s, clocked ? clocks + (u64)(l * n + k) * CLOCK : 0);
    }
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    std::vector<double> best(n + 1, 1e30);
    std::vector<ull> v((u64)LAYERS * n * CLOCK);
    for (u32 r = 0; r < 5; r++) {
        float ms;
        OK(cudaMemsetAsync(clocks, 0, v.size() * 8, s));
        OK(cudaEventRecord(t0, s));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaEventRecord(t1, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaEventElapsedTime(&ms, t0, t1));
        OK(cudaMemcpy(v.data(), clocks, v.size() * 8, cudaMemcpyDeviceToHost));
        best[n] = std::min(best[n], ms * 1e3 / LAYERS);
        for (u32 k = 0; k < n && clocked; k++) {
            double sum = 0;
            for (u32 l = 0; l < LAYERS; l++) {
                ull begin = ~0ull, end = 0, *c = &v[(u64)(l * n + k) * CLOCK];
                for (u32 i = 0; i < CLOCK && c[i]; i += 2) {
                    begin = std::min(begin, c[i]);
                    end = std::max(end, c[i + 1]);
                }
                sum += (double)(end - begin) * 1e-3;
            }
            best[k] = std::min(best[k], sum / LAYERS);
        }
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(g));
    OK(cudaStreamDestroy(s));
    return best;
}

// What a layer's launch leaves in `bytes` of p.
static std::vector<u8> result(const job &j, u32 layer, const u8 *p, u64 bytes)
{
    std::vector<u8> v(bytes);
    OK(cudaMemset((void *)p, 0, bytes));
    launch(j, layer, false, 0, 0);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(v.data(), p, bytes, cudaMemcpyDeviceToHost));
    return v;
}

static job experts_in(bool twin, u32 n)
{
    u64 gate = matrix(D, FF) * EXPERTS;
    job j;
    j.k = twin ? (const void *)e_experts_in_twin : (const void *)e_experts_in_1;
    j.shm = twin ? GPU_SHM_TWIN(GT_Q4_0, D) : GPU_SHM_EXPERTS_IN(8u, D);
    j.units = n * USED * (FF / 16);
    for (u32 l = 0; l < LAYERS; l++) {
        union gpu_args a = {};
        struct experts_in_args *p = &a.experts_in_;
        p->n_in = D, p->n_out = FF, p->y_stride = FF, p->type_gate = p->type_up = GT_Q4_0, p->n_used = USED, p->pairs_at = PAIRS, p->tiles_at = TILES;
        j.a.push_back(a);
        j.b.push_back({{in, act_d, w_gate + l * gate, w_up + l * gate, exp_act, route + (u64)l * LIST * 4}});
    }
    return j;
}

static job experts_out(bool twin, u32 n)
{
    job j;
    j.k = twin ? (const void *)e_experts_out_twin : (const void *)e_experts_out_1;
    j.shm = twin ? GPU_SHM_TWIN(GT_Q4_0, FF) : GPU_SHM_EXPERTS_OUT(8u, FF);
    j.units = n * USED * (D / 16);
    for (u32 l = 0; l < LAYERS; l++) {
        union gpu_args a = {};
        struct experts_out_args *p = &a.experts_out_;
        p->source = SRC_FLOAT, p->n_in = FF, p->n_out = D, p->x_stride = FF, p->y_stride = D, p->type = GT_Q4_0, p->n_used = USED, p->ids_at = IDS,
        p->w_at = RANK_W, p->pairs_at = PAIRS, p->tiles_at = TILES, p->per = 1;
        j.a.push_back(a);
        j.b.push_back({{in, exp_act, 0, w_down + l * matrix(FF, D) * EXPERTS, y, route + (u64)l * LIST * 4}});
    }
    return j;
}

static job combine(u32 n)
{
    job j = {(const void *)e_combine_norm, GPU_SHM_NORM(D), n};
    for (u32 l = 0; l < LAYERS; l++) {
        union gpu_args a = {};
        struct combine_args *c = &a.combine_norm_.combine;
        struct norm_args *p = &a.combine_norm_.norm;
        c->n = D, c->n_used = USED, c->w_at = RANK_W, c->y_stride = D, c->x_stride = D;
        p->n = D, p->h_stride = D, p->eps = 1e-6f, p->write_h = 1, p->write_act = 1, p->has_norm = 1, p->ranks = 1;
        j.a.push_back(a);
        j.b.push_back({{in, y, route + (u64)l * LIST * 4, 0, 0, x, norm_w, h, hq}});
    }
    return j;
}

// Rule 1 of n rows of x, once.
static void quantise(u32 n)
{
    job j = {(const void *)e_norm, 0, n};
    union gpu_args a = {};
    a.norm_.n = D, a.norm_.x_stride = D, a.norm_.write_act = 1, a.norm_.ranks = 1;
    j.a.push_back(a);
    j.b.push_back({{in, x, 0, 0, act_d}});
    launch(j, 0, false, 0, 0);
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
            hit += np > first;
            for (; first < np; first += 8) {
                tiles[1 + 2 * tiles[0]] = e;
                tiles[2 + 2 * tiles[0]++] = first | std::min(np - first, 8u) << 24;
            }
        }
    }
    OK(cudaMemcpy(route, lists.data(), lists.size() * 4, cudaMemcpyHostToDevice));
    return (double)hit / LAYERS;
}

static void rows(u32 n)
{
    u32 header[16] = {n, n};
    OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
    double hit = make_lists(n), us = hit * (double)matrix(FF, D) / 4.3e6;
    fill<<<1024, 256>>>((u32 *)x, MAX_ROWS * D, 1, true);
    quantise(n);
    job i = experts_in(true, n), o = experts_out(true, n), c = combine(n);
    bool same = true;
    for (u32 l = 0; l < LAYERS; l += 5) {
        same &= result(experts_in(false, n), l, exp_act, n * USED * FF * 4) == result(i, l, exp_act, n * USED * FF * 4);
        same &= result(experts_out(false, n), l, y, n * USED * D * 4) == result(o, l, y, n * USED * D * 4);
    }
    failed |= !same;
    std::vector<double> clock = time_us({&i, &o, &c}, false, true);
    printf("%4u %8.1f %9.1f %6.1f %9.1f %6.1f %9.1f %6.1f %11.1f %6.1f %6.1f %7.1f %6.1f  %s\n", n, hit, 2 * us, us, time_us({&i}, false, false)[1],
           time_us({&i}, true, false)[1], time_us({&o}, false, false)[1], time_us({&o}, true, false)[1], clock[0], clock[1], clock[2],
           time_us({&i, &o, &c}, false, false)[3], time_us({&i, &o, &c}, true, false)[3], same ? "same bytes" : "BYTES DIFFER");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    sms = (u32)prop.multiProcessorCount;
    w_gate = device(matrix(D, FF) * EXPERTS * LAYERS, false), w_up = device(matrix(D, FF) * EXPERTS * LAYERS, false);
    w_down = device(matrix(FF, D) * EXPERTS * LAYERS, false);
    x = device(MAX_ROWS * D * 4, true), norm_w = device(D * 4, true), h = device(MAX_ROWS * D * 4, true), hq = device(MAX_ROWS * GPU_ACT_BYTES(D), false);
    act_d = device(MAX_ROWS * GPU_ACT_BYTES(D), false), y = device(MAX_ROWS * USED * D * 4, true), exp_act = device(MAX_ROWS * USED * FF * 4, true);
    in = device(4096, false), route = device((u64)LAYERS * LIST * 4, false);
    OK(cudaMalloc(&clocks, 8ull * LAYERS * 3 * CLOCK));
    OK(cudaDeviceSynchronize());
    printf("%4s %8s %16s %16s %16s %25s %14s\n", "rows", "experts", "floor in, out", "in alone, pdl", "out alone, pdl", "in a layer: in, out, join", "layer, pdl");
    for (int k = 1; k < argc; k++)
        rows((u32)atoi(argv[k]));
    for (u32 n = 4; n <= MAX_ROWS && argc == 1; n *= 2)
        rows(n);
    return failed;
}
