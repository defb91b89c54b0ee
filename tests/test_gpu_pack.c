/* gpu_pack: what the panels of gpu/layout.h hold, element by element, against kernel/pack.c; and what both refuse. */
#include "file_blocks.h"

#include "device/dev_gpu.h"
#include "gpu/layout.h"
#include "kernel/pack.h"

static const u32 TYPES[] = {GT_Q4_0, GT_Q4_1, GT_Q5_0, GT_Q5_1, GT_Q8_0, GT_Q4_K,
                            GT_Q5_K, GT_Q6_K, GT_F32,  GT_F16,  GT_BF16};
enum { N_QUANT = 8 }; /* of TYPES */

/* Element k of a row of a panel, by layout.h: the integer first, then the scale (as unpack_row does). */
static float panel_value(u32 type, const u8 *panel, u32 row, u32 k)
{
    const u8 *tile = panel + (u64)(k / GPU_SEG) * GPU_TILE_BYTES(type), *after = tile + 2048;
    u32 b = k % GPU_SEG / 32, low = row % 8 * 4 + k % 16 / 4, below = row / 8, upper = k / 16 % 2, j = k % 4;
    u32 half = 2 * (row * 8 + b), q8 = b * 512 + low * 16 + upper * 8 + below * 4 + j;
    i32 q = tile[b / 2 * 512 + low * 16 + b % 2 * 8 + below * 4 + j] >> 4 * upper & 15;
    if (type == GT_Q5_0 || type == GT_Q5_1 || type == GT_Q5_K)
        q |= (get16(after + low * 16 + 2 * b) >> (8 * below + 4 * upper + j) & 1) << 4;
    if (type == GT_Q6_K)
        q |= (after[b / 4 * 512 + low * 16 + b % 4 * 4 + 2 * upper + below] >> 2 * j & 3) << 4;
    const u8 *sc = after + (type == GT_Q5_K ? 512 : type == GT_Q6_K ? 1024 : 0), *dd = sc + 256;
    switch (type) {
    case GT_Q4_0:
        return (float)(q - 8) * ex_half(get16(after + half));
    case GT_Q4_1:
        return (float)q * ex_half(get16(after + half)) + ex_half(get16(after + 256 + half));
    case GT_Q5_0:
        return (float)(q - 16) * ex_half(get16(after + 512 + half));
    case GT_Q5_1:
        return (float)q * ex_half(get16(after + 512 + half)) + ex_half(get16(after + 768 + half));
    case GT_Q8_0:
        return (float)(i8)tile[q8] * ex_half(get16(tile + 4096 + half));
    case GT_Q4_K:
    case GT_Q5_K:
        return (float)(sc[16 * row + b] * q) * ex_half(get16(dd + 4 * row)) -
               (float)sc[16 * row + 8 + b] * ex_half(get16(dd + 4 * row + 2));
    case GT_Q6_K:
        return (float)((i8)sc[16 * row + 2 * b + upper] * (q - 32)) * ex_half(get16(dd + 2 * row));
    case GT_F32:
        return EX_FLOAT((u32)get16(tile + 4 * (k % GPU_SEG * 16 + row)) |
                        (u32)get16(tile + 4 * (k % GPU_SEG * 16 + row) + 2) << 16);
    case GT_F16:
        return ex_half(get16(tile + 2 * (k % GPU_SEG * 16 + row)));
    default:
        return ex_bf16(get16(tile + 2 * (k % GPU_SEG * 16 + row)));
    }
}

/* Every scale tells one integer from another. */
static void plain_scales(u32 type, u8 *p, u64 bytes)
{
    bool minimum = type == GT_Q4_1 || type == GT_Q5_1 || type == GT_Q4_K || type == GT_Q5_K;
    for (u64 b = 0; dtype_info(type)->quantised && b < bytes; b += dtype_info(type)->block_bytes) {
        put16(p + b + (type == GT_Q6_K ? 208 : 0), (u16)(0x2000 + check_below(0x1000)));
        if (minimum)
            put16(p + b + 2, (u16)(0x2000 + check_below(0x1000)));
    }
}

static void panels_hold_the_file(void **state)
{
    (void)state;
    check_seed(120);
    static float y[2880];
    for (u32 t = 0; t < COUNT(TYPES); t++)
        for (u32 i = 0; i < 6; i++) {
            u32 type = TYPES[t];
            const struct dtype_info *ti = dtype_info(type);
            u32 n_in = ti->block_elems * (1 + check_below(600 / ti->block_elems)), n_out = 1 + check_below(40),
                panels = pack_panels(n_out), bad = 0;
            u64 bytes = (u64)n_in / ti->block_elems * ti->block_bytes * n_out, gpu_bytes = gpu_panel_bytes(type, n_in);
            struct guarded g;
            u8 *file = calloc(bytes, 1), *cpu = calloc(panels, pack_panel_bytes(type, n_in)),
               *gpu = guard(&g, gpu_bytes * panels, true);
            assert_true(file && cpu);
            memset(gpu, 0xA5, gpu_bytes * panels);
            random_blocks(type, file, bytes);
            plain_scales(type, file, bytes);
            assert_int_equal(pack(type, file, n_in, n_out, cpu, 0, panels, &bad), 0);
            assert_int_equal(gpu_pack(type, file, n_in, n_out, gpu, 0, panels, &bad), 0);
            for (u32 r = 0; r < panels * GPU_PANEL; r++) {
                if (r < n_out)
                    unpack_row(type, cpu, n_in, r, y);
                for (u32 k = 0; k < GPU_PAD(n_in); k++) {
                    float want = r < n_out && k < n_in ? y[k] : 0.0f;
                    float v = ex_flush(panel_value(type, gpu + r / GPU_PANEL * gpu_bytes, r % GPU_PANEL, k));
                    if (v != want || (want != 0.0f && EX_BITS(v) != EX_BITS(want)))
                        fail_msg("%s n_in %u n_out %u: row %u element %u is %g, expected %g", ti->name, n_in, n_out, r,
                                 k, (double)v, (double)want);
                }
            }
            unguard(&g);
            free(file);
            free(cpu);
        }
}

/* Refused or not, and which row: as pack does. */
static void panels_refuse_what_the_cpu_refuses(void **state)
{
    (void)state;
    check_seed(121);
    u32 refused = 0;
    for (u32 t = 0; t < COUNT(TYPES); t++)
        for (u32 i = 0; i < 40; i++) {
            u32 type = TYPES[t], n_in = t < N_QUANT ? 256 : 1 + check_below(300), n_out = 1 + check_below(40),
                panels = pack_panels(n_out);
            const struct dtype_info *ti = dtype_info(type);
            u64 bytes = (u64)n_in / ti->block_elems * ti->block_bytes * n_out;
            u32 bad = 99, bad_gpu = 99;
            u8 *file = calloc(bytes, 1), *cpu = calloc(panels, pack_panel_bytes(type, n_in)),
               *gpu = calloc(panels, gpu_panel_bytes(type, n_in));
            assert_true(file && cpu && gpu);
            random_blocks(type, file, bytes);
            for (u32 n = check_below(3); n; n--) { /* infinities and NaNs in some rows */
                u8 *p = file + (u64)check_below((u32)(bytes / ti->block_bytes)) * ti->block_bytes +
                        (type == GT_Q6_K  ? 208
                         : type == GT_F32 ? 2
                                          : 0);
                put16(p, (u16)((type == GT_BF16 || type == GT_F32 ? 0x7F80 : 0x7C00) | check_below(2) << 15 |
                               check_below(2)));
            }
            int want = pack(type, file, n_in, n_out, cpu, 0, panels, &bad);
            assert_int_equal(gpu_pack(type, file, n_in, n_out, gpu, 0, panels, &bad_gpu), want);
            assert_int_equal(bad_gpu, bad);
            refused += want != 0;
            free(file);
            free(cpu);
            free(gpu);
        }
    assert_true(refused > 100);
    assert_int_equal(gpu_panel_bytes(3333, 256), 0);
    assert_int_equal(gpu_panel_bytes(GT_Q4_K, 288), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(panels_hold_the_file),
        cmocka_unit_test(panels_refuse_what_the_cpu_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
