// Attention of a prompt's rows on a GPU (k_prompt.h), Qwen3-30B-A3B's shape with f16 or q8_0 keys: 512 rows, a step's, and 1,024 at several positions, each 48
// times in a CUDA graph with dependent launch over the keys and values of 48 layers. Some of its rows are held against k_attend and k_join, byte by byte.
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/prompt bench/prompt.cu && build/prompt
// Microseconds a launch, and the share of them that the multiply-adds alone take, one a lane and clock at 1.755 GHz. Status 1 when bytes differ.
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
X(prompt, attend) X(attend, attend) X(join, attend)
#undef X
#ifdef VARIANTS
#include "variants.h"
#endif

enum { LAYERS = 48, HEADS = 32, KV = 4, DIM = 128, WIDTH = HEADS * DIM, CTX = 8192, MAX_ROWS = 1024, EVERY = 61 };
enum { ROWS_AT = IN_HEADER, TILES_AT = ROWS_AT + 4 * MAX_ROWS, ITEMS_AT = TILES_AT + MAX_ROWS, WORDS = ITEMS_AT + 1024 };

static u32 sms;
static u8 *in, *q, *att, *arena, *parts;
static bool failed;

static void launch(kernel *k, u32 shm, const union gpu_args &a, u32 layer, bool pdl, cudaStream_t s)
{
    struct bufs b = {{in, q, arena + (u64)layer * 2 * KV * a.attend_.head_bytes, parts, att}};
    launch_kernel(k, 2 * sms, shm, a, b, pdl, s);
}

static double time_us(kernel *k, u32 shm, const union gpu_args &a)
{
    return graph_us(4, [&](cudaStream_t s) {
               for (u32 i = 0; i < LAYERS; i++)
                   launch(k, shm, a, i, i > 0, s);
           }) / LAYERS;
}

static std::vector<u8> rows_of_att()
{
    std::vector<u8> v((u64)MAX_ROWS * WIDTH * 4);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(v.data(), att, v.size(), cudaMemcpyDeviceToHost));
    OK(cudaMemset(att, 0xA5, v.size()));
    return v;
}

// n rows of a slot from a position on: their table, tiles, and items of every EVERYth row, for k_attend.
static void inputs(u32 n, u32 pos)
{
    std::vector<u32> w(WORDS, 0);
    u32 n_items = 0, n_tiles = 0;
    for (u32 i = 0; i < n; i++) {
        u32 row[4] = {0, 0, pos + i, i % EVERY ? ~0u : n_items};
        memcpy(&w[ROWS_AT + 4 * i], row, sizeof row);
        for (u32 c = 0; i % EVERY == 0 && c <= (pos + i) / GPU_CHUNK; c++)
            w[ITEMS_AT + n_items++] = i | c << 16;
    }
    for (u32 i = n / GPU_TILE_ROWS; i--;)
        w[TILES_AT + n_tiles++] = i * GPU_TILE_ROWS | GPU_TILE_ROWS << 24;
    w[IN_ROWS] = n, w[IN_ITEMS] = n_items, w[IN_TILES] = n_tiles, w[IN_HEADS] = 8;
    OK(cudaMemcpy(in, w.data(), WORDS * 4, cudaMemcpyHostToDevice));
}

static void line(u32 n, u32 pos, u32 q8)
{
    union gpu_args a = {};
    struct attend_args *p = &a.attend_;
    p->rows_at = ROWS_AT, p->items_at = ITEMS_AT, p->tiles_at = TILES_AT, p->n_heads = HEADS, p->n_kv = KV, p->d_head = DIM, p->q_stride = WIDTH,
    p->att_stride = WIDTH, p->kv_q8 = q8, p->head_bytes = CTX / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(DIM, q8), p->scale = 0.0883883461f;
    u32 shm = q8 ? GPU_SHM_PROMPT_Q8(8u, DIM) : GPU_SHM_PROMPT_F16(8u, DIM), items = GPU_SHM_ATTEND(8u, DIM);
    double macs = 0;
    inputs(n, pos);
    for (u32 i = 0; i < n; i++)
        macs += (double)(pos + i + 1) * WIDTH * (q8 ? 1 : 2);
    rows_of_att();
    launch(e_attend, items, a, 5, false, 0);
    launch(e_join, 0, a, 5, false, 0);
    std::vector<u8> want = rows_of_att();
    launch(e_prompt, shm, a, 5, false, 0);
    std::vector<u8> got = rows_of_att();
    bool same = true;
    for (u32 i = 0; i < n; i += EVERY)
        same &= memcmp(&want[(u64)i * WIDTH * 4], &got[(u64)i * WIDTH * 4], WIDTH * 4) == 0;
    double us = time_us(e_prompt, shm, a);
    printf("%s %5u rows at %5u  %8.1f us  %3.0f %%  %s", q8 ? "q8_0" : "f16 ", n, pos, us, macs / (sms * 128 * 1755.0) / us * 100, same ? "same bytes" : "BYTES DIFFER");
#ifdef VARIANTS
    variants(a, q8, n, got, macs);
#endif
    printf("\n");
    fflush(stdout);
    failed |= !same;
}

int main(void)
{
    static const u32 AT[][2] = {{512, 0}, {512, 512}, {512, 1536}, {512, 7680}, {1024, 0}, {1024, 1024}, {1024, 7168}};
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    sms = (u32)prop.multiProcessorCount;
    arena = device((u64)LAYERS * 2 * KV * CTX * DIM * 2, false), q = device((u64)MAX_ROWS * WIDTH * 4, true), att = device((u64)MAX_ROWS * WIDTH * 4, true);
    in = device(WORDS * 4, false), parts = device(1024ull * HEADS * (DIM + 2) * 4, false);
    for (u32 q8 = 0; q8 < 2; q8++)
        for (u32 i = 0; i < sizeof AT / sizeof *AT; i++)
            line(AT[i][0], AT[i][1], q8);
    return failed;
}
