// Products of many rows on a GPU (k_many.h), with the shapes of Qwen3-30B-A3B: q, k, v and attention's output, and the experts' two products over 128 experts
// of which a row has 8 at random. Each 48 times in a CUDA graph with dependent launch, over the weights of 48 layers (24 of experts' other types).
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -fmad=false -O3 -Isrc -o build/many bench/many.cu && build/many [ROWS...]
// Microseconds a launch: the kernel of up to 128 (experts: 256) rows, k_many.h's, and the floor: 13 instructions for each 16 x 8 x 32 matrix tile of what is there,
// at one a clock of four quarters of an SM, or the bytes of the weights at 4.3 TB/s. Status 1 when bytes differ.
#include "cuda_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define X(name, args)                                                                                                   \
    __global__ void __launch_bounds__(256, GPU_ALONE(GK_##name) ? 1 : 2) e_##name(const __grid_constant__ union gpu_args a, const __grid_constant__ struct bufs b) \
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
X(product_2, product) X(product_many, product) X(experts_in_2, experts_in) X(experts_in_many, experts_in) X(experts_out_2, experts_out)
X(experts_out_many, experts_out) X(norm, norm)
#undef X

enum { LAYERS = 48, D = 2048, KV = 512, O_IN = 4096, FF = 768, EXPERTS = 128, USED = 8, MAX_ROWS = 2048, LIST = 81920 };
enum { PAIRS = 16384, TILES = 32768, TILES_2 = 49152 }; // of a layer's route lists; TILES_2: for the other kernel

struct variant {
    kernel *k;
    u32 shm, tile_rows; // 0: a product
    u32 per = 2;        // groups an SM
};
enum what { QKV, OUT, EXPERTS_IN, EXPERTS_OUT };

static u32 sms;
static u8 *in, *x, *act_d, *act_o, *act_f, *y, *w, *route;
static u32 n_rows;
static bool failed;

static u64 matrix(u32 type, u32 n_in, u32 n_out)
{
    return (u64)((n_out + 15) / 16) * (GPU_PAD(n_in) / 256) * GPU_TILE_BYTES(type);
}

static void launch(const variant &v, const union gpu_args &a, const struct bufs &b, bool pdl, cudaStream_t s)
{
    launch_kernel(v.k, v.per * sms, v.shm, a, b, pdl, s);
}

static u32 layers(what s, u32 type)
{
    return s >= EXPERTS_IN && type != GT_Q4_0 ? 24 : LAYERS;
}

static void one(const variant &v, what s, u32 type, u32 layer, bool pdl, cudaStream_t stream)
{
    union gpu_args a = {};
    struct bufs b = {{in}};
    u32 *lists = (u32 *)route + (u64)layer * LIST, tiles = v.tile_rows == GPU_MANY_COLS ? TILES : TILES_2;
    if (s <= OUT) {
        static const u32 N_OUT[] = {O_IN, KV, KV};
        struct product_args *p = &a.product_;
        u8 *from = w + layer * (s == QKV ? matrix(type, D, O_IN + 2 * KV) : matrix(type, O_IN, D)), *to = y;
        p->source = SRC_ACT, p->n_in = s == QKV ? D : O_IN, p->n_mats = s == QKV ? 3 : 1, p->add = s == OUT, p->res_stride = D;
        b.p[1] = s == QKV ? act_d : act_o, b.p[12] = x;
        for (u32 m = 0; m < p->n_mats; m++) {
            u32 n = s == QKV ? N_OUT[m] : D;
            p->type[m] = type, p->n_out[m] = p->y_stride[m] = n;
            b.p[3 + m] = from, b.p[9 + m] = to;
            from += matrix(type, p->n_in, n), to += (u64)n_rows * n * 4;
        }
    } else if (s == EXPERTS_IN) {
        struct experts_in_args *p = &a.experts_in_;
        u64 half = matrix(type, D, FF) * EXPERTS;
        p->n_in = D, p->n_out = p->y_stride = FF, p->type_gate = p->type_up = type, p->n_used = USED, p->pairs_at = PAIRS, p->tiles_at = tiles;
        b.p[1] = act_d, b.p[2] = w + 2 * layer * half, b.p[3] = w + (2 * layer + 1) * half, b.p[4] = y, b.p[5] = lists;
    } else {
        struct experts_out_args *p = &a.experts_out_;
        p->source = SRC_ACT, p->n_in = FF, p->n_out = p->y_stride = D, p->type = type, p->n_used = USED, p->pairs_at = PAIRS, p->tiles_at = tiles, p->per = 1;
        b.p[2] = act_f, b.p[3] = w + layer * matrix(type, FF, D) * EXPERTS, b.p[4] = y, b.p[5] = lists;
    }
    launch(v, a, b, pdl, stream);
}

static double time_us(const variant &v, what s, u32 type)
{
    return graph_us(3, [&](cudaStream_t stream) {
               for (u32 i = 0; i < layers(s, type); i++)
                   one(v, s, type, i, i != 0, stream);
           }) / layers(s, type);
}

// What a launch leaves in y and, from the same each time, in x.
static std::vector<u8> result(const variant &v, what s, u32 type, u32 layer)
{
    static const u32 OUTS[] = {O_IN + 2 * KV, D, USED * FF, USED * D};
    u64 y_bytes = (u64)n_rows * OUTS[s] * 4, x_bytes = (u64)n_rows * D * 4;
    std::vector<u8> to(y_bytes + x_bytes);
    OK(cudaMemset(y, 0, y_bytes));
    fill<<<1024, 256>>>((u32 *)x, x_bytes / 4, 1, true);
    one(v, s, type, layer, false, 0);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(to.data(), y, y_bytes, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(to.data() + y_bytes, x, x_bytes, cudaMemcpyDeviceToHost));
    return to;
}

// Pairs, and tiles of at most so many rows, as group makes them.
static void make_lists(u32 n, u32 rows_2)
{
    std::vector<u32> lists(LAYERS * LIST), ids(n * USED);
    for (u32 l = 0; l < LAYERS; l++) {
        u32 *pairs = &lists[(u64)l * LIST] + PAIRS, np = 0;
        for (u32 i = 0; i < n * USED; i++) {
            bool again;
            do {
                ids[i] = (u32)rand() % EXPERTS;
                again = false;
                for (u32 k = i / USED * USED; k < i; k++)
                    again |= ids[k] == ids[i];
            } while (again);
        }
        std::vector<std::vector<u32>> of(EXPERTS);
        for (u32 i = 0; i < n * USED; i++)
            of[ids[i]].push_back(i);
        for (u32 e = 0; e < EXPERTS; e++) {
            for (u32 k = 0; k < 2; k++) {
                u32 *tiles = &lists[(u64)l * LIST] + (k ? TILES_2 : TILES), most = k ? rows_2 : GPU_MANY_COLS;
                for (u32 at = 0; at < of[e].size(); at += most) {
                    tiles[1 + 2 * tiles[0]] = e;
                    tiles[2 + 2 * tiles[0]++] = (np + at) | std::min((u32)of[e].size() - at, most) << 24;
                }
            }
            for (u32 p : of[e])
                pairs[np++] = p;
        }
    }
    OK(cudaMemcpy(route, lists.data(), lists.size() * 4, cudaMemcpyHostToDevice));
}

static void compare(what s, const char *name, u32 type, std::vector<variant> v)
{
    static const double WEIGHTS[] = {(double)D * (O_IN + 2 * KV), (double)O_IN * D, 2.0 * D * FF * USED, (double)FF * D * USED};
    double tiles = WEIGHTS[s] * n_rows / (16 * 8 * 32), floor = tiles * 13 / (4.0 * sms * 1.75e3);
    double bytes = WEIGHTS[s] / 256 * GPU_TILE_BYTES(type) / 16 * (s >= EXPERTS_IN ? EXPERTS / USED : 1) / 4.3e6;
    std::vector<u8> want = result(v[0], s, type, 5);
    printf("%5u %-18s %8.1f %8.1f", n_rows, name, floor, bytes);
    for (u32 k = 0; k < v.size(); k++) {
        bool same = k == 0 || result(v[k], s, type, 5) == want;
        printf(" %8.1f%s", time_us(v[k], s, type), same ? "" : " DIFFERS");
        failed |= !same;
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct {
        u32 type;
        const char *name[4];
    } TYPES[] = {{GT_Q4_0, {"qkv q4_0", "o q4_0", "experts in q4_0", "experts out q4_0"}},
                 {GT_Q4_K, {"qkv q4_k", "o q4_k", "experts in q4_k", "experts out q4_k"}},
                 {GT_Q6_K, {"qkv q6_k", "o q6_k", "experts in q6_k", "experts out q6_k"}}};
    static const u32 ROWS[] = {128, 256, 512, 1024, 2048};
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    sms = (u32)prop.multiProcessorCount;
    w = device(2 * matrix(GT_Q4_0, D, FF) * EXPERTS * LAYERS, false);
    x = device(MAX_ROWS * D * 4, true), y = device((u64)MAX_ROWS * USED * D * 4, true), in = device(4096, false), route = device((u64)LAYERS * LIST * 4, false);
    act_d = device(MAX_ROWS * GPU_ACT_BYTES(D), false), act_o = device(MAX_ROWS * GPU_ACT_BYTES(O_IN), false);
    act_f = device((u64)MAX_ROWS * USED * GPU_ACT_BYTES(FF), false);
    for (u32 k = 0; k < 3; k++) { // rule 1 of rows at random
        u32 n[] = {D, O_IN, FF}, rows = k == 2 ? MAX_ROWS * USED : MAX_ROWS, header[16] = {rows, rows};
        u8 *from = device((u64)rows * n[k] * 4, true);
        union gpu_args a = {};
        OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
        a.norm_.n = a.norm_.x_stride = n[k], a.norm_.write_act = 1, a.norm_.ranks = 1;
        launch({e_norm, 0, 0}, a, {{in, from, 0, 0, k == 0 ? act_d : k == 1 ? act_o : act_f}}, false, 0);
        OK(cudaDeviceSynchronize());
        OK(cudaFree(from));
    }
    printf("%5s %-18s %8s %8s %8s %8s\n", "rows", "", "tiles", "bytes", "before", "many");
    for (u32 i = 0; i < (argc > 1 ? (u32)argc - 1 : 5u); i++) {
        n_rows = argc > 1 ? (u32)atoi(argv[i + 1]) : ROWS[i];
        u32 header[16] = {n_rows, n_rows};
        OK(cudaMemcpy(in, header, sizeof header, cudaMemcpyHostToDevice));
        make_lists(n_rows, 16);
        for (auto &t : TYPES) {
            compare(QKV, t.name[0], t.type, {{e_product_2, GPU_SHM_PRODUCT(16u, D), 0}, {e_product_many, GPU_SHM_MANY, 0}});
            compare(OUT, t.name[1], t.type, {{e_product_2, GPU_SHM_PRODUCT(16u, O_IN), 0}, {e_product_many, GPU_SHM_MANY, 0}});
            compare(EXPERTS_IN, t.name[2], t.type, {{e_experts_in_2, GPU_SHM_EXPERTS_IN(16u, D), 16}, {e_experts_in_many, GPU_SHM_MANY_IN, GPU_MANY_COLS, 1}});
            compare(EXPERTS_OUT, t.name[3], t.type, {{e_experts_out_2, GPU_SHM_EXPERTS_OUT(16u, FF), 16}, {e_experts_out_many, GPU_SHM_MANY, GPU_MANY_COLS}});
        }
    }
    return failed;
}
