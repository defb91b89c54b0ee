// What works on rows alone (k_rows.h, k_store.h) on a GPU, Qwen3-30B-A3B's shape: the norm before the router, experts joined with the norm that follows, queries and keys
// rotated and stored; 512 rows, a prompt's step, and 1,024, each 48 times in a CUDA graph with dependent launch.
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/rows bench/rows.cu && build/rows
// Microseconds a launch, and what moves in that time.
#include "cuda_bench.h"

#include <cstring>
#include <vector>

#define X(name, args)                                                                                                   \
    __global__ void __launch_bounds__(256, 2) e_##name(const __grid_constant__ union gpu_args a, const __grid_constant__ struct bufs b) \
    {                                                                                                                   \
        extern __shared__ __align__(16) u32 shm[];                                                                      \
        struct ring ring;                                                                                               \
        struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31u, &ring};                \
        if (!GPU_LOADS_FIRST(GK_##name))                                                                                \
            in_turn();                                                                                                  \
        k_##name(at, &a.args##_, b, shm);                                                                               \
    }
X(norm, norm) X(combine_norm, combine_norm) X(store, store)
#undef X
#ifdef VARIANTS
#include "rows_old.h"
#endif

enum { LAYERS = 48, D = 2048, USED = 8, HEADS = 32, KV = 4, DIM = 128, CTX = 8192, MAX_ROWS = 1024, ROWS_AT = IN_HEADER, W_AT = 0 };

static u32 sms;
static u8 *in, *x, *h, *act, *y, *w, *lists, *q, *kv, *rope, *arena;

static double time_us(kernel *k, u32 shm, const union gpu_args &a, struct bufs b, u32 moving, u64 step)
{
    return graph_us(6, [&](cudaStream_t s) {
               for (u32 i = 0; i < LAYERS; i++) {
                   launch_kernel(k, 2 * sms, shm, a, b, i > 0, s);
                   b.p[moving] = (u8 *)b.p[moving] + step;
               }
           }) / LAYERS;
}

static void line(const char *name, u32 n, double bytes, double us)
{
    printf("%-16s %5u rows %7.2f us %6.0f GB/s", name, n, us, bytes / us * 1e-3);
}

static void rows(u32 n)
{
    std::vector<u32> words(ROWS_AT + 4 * n, 0);
    words[IN_ROWS] = n;
    for (u32 i = 0; i < n; i++)
        words[ROWS_AT + 4 * i + 2] = 512 + i;
    OK(cudaMemcpy(in, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
    u32 more = (n - 1) / (2 * sms);
    more = more > GPU_NORM_MORE ? GPU_NORM_MORE : more;
    union gpu_args a = {}, c = {}, s = {};
    a.norm_.n = D, a.norm_.x_stride = a.norm_.h_stride = D, a.norm_.has_norm = 1, a.norm_.write_h = a.norm_.write_act = 1, a.norm_.ranks = 1, a.norm_.more = more,
    a.norm_.eps = 1e-6f;
    c.combine_norm_.combine.n = D, c.combine_norm_.combine.n_used = USED, c.combine_norm_.combine.w_at = W_AT, c.combine_norm_.combine.y_stride = D,
    c.combine_norm_.combine.x_stride = D, c.combine_norm_.norm = a.norm_, c.combine_norm_.norm.write_h = 0;
    struct store_args *p = &s.store_;
    p->rows_at = ROWS_AT, p->n_heads = HEADS, p->n_kv = KV, p->d_head = p->d_rope = DIM, p->neox = 1, p->q_stride = HEADS * DIM, p->kv_stride = KV * DIM,
    p->has_norm = 1, p->head_bytes = CTX / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(DIM, 0), p->eps = 1e-6f;
    struct bufs bn = {{in, x, w, h, act}}, bc = {{in, y, lists, 0, 0, x, w, 0, act}}, bs = {{in, q, kv, kv + MAX_ROWS * KV * DIM * 4, w, w, rope, arena}};
    u64 layer = (u64)2 * KV * p->head_bytes;
    line("norm", n, n * (D * 8.0 + GPU_ACT_BYTES(D)), time_us(e_norm, GPU_SHM_NORM(D) * (1 + more), a, bn, 2, 0));
#ifdef VARIANTS
    old_norm(a, bn, n);
#endif
    printf("\n");
    line("combine, norm", n, n * (D * 4.0 * (USED + 2) + GPU_ACT_BYTES(D)), time_us(e_combine_norm, GPU_SHM_NORM(D) * (1 + more), c, bc, 2, 0));
#ifdef VARIANTS
    old_combine_norm(c, bc, n);
#endif
    printf("\n");
    line("store", n, n * (HEADS * 8.0 + KV * 16.0) * DIM, time_us(e_store, GPU_SHM_STORE, s, bs, 7, layer));
#ifdef VARIANTS
    old_store(s, bs, n);
#endif
    printf("\n");
    fflush(stdout);
}

int main(void)
{
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    sms = (u32)prop.multiProcessorCount;
    in = device(4 * (ROWS_AT + 4 * MAX_ROWS), false), x = device(MAX_ROWS * D * 4, true), h = device(MAX_ROWS * D * 4, true), w = device(D * 4, true);
    act = device(MAX_ROWS * GPU_ACT_BYTES(D), false), y = device((u64)MAX_ROWS * USED * D * 4, true), lists = device(MAX_ROWS * USED * 4, true);
    q = device((u64)MAX_ROWS * HEADS * DIM * 4, true), kv = device((u64)2 * MAX_ROWS * KV * DIM * 4, true), rope = device((u64)CTX * DIM * 4, true);
    arena = device((u64)LAYERS * 2 * KV * CTX * DIM * 2, false);
    OK(cudaDeviceSynchronize());
    rows(64);
    rows(512);
    rows(1024);
    return 0;
}
