/* Rule 1 on a GPU: activations of a block of 32 become integers, a scale and a sum, in the layout of an act row (layout.h). Eight
 * lanes hold a block, four neighbouring elements each, so that a lane's integers are one whole word; a SIMD group holds four blocks.
 *
 *   lane of the SIMD group   0 .. 7      8 .. 15      16 .. 23     24 .. 31
 *   block                    b           b + 1        b + 2        b + 3        its lane w % 8 has elements 4w..4w+3: word w
 *
 * What is used by norm and swiglu here, and by products that quantise for themselves (k_stage.h). No barriers. */
#ifndef PS_K_ACT_H
#define PS_K_ACT_H

/* x / 127, rounded to nearest: the quotient by a rounded 1 / 127 and its remainder (compared with x / 127 for all of them). */
KFN float act_over_127(float x)
{
    const float part = 1.0f / 127.0f;
    float q = x * part;
    return EX_FMA(EX_FMA(-127.0f, q, x), part, q);
}

/* Of a block whose largest |x| has the bits `top`: what its elements are multiplied by, and *d its scale. Returns
 * whether there are integers but zeros. */
KFN u32 act_scale(u32 top, THR float *r, THR float *d)
{
    u32 finite = top < 0x7F800000u;
    float scale = ex_round11(act_over_127(EX_FLOAT(finite ? top : 0)));
    u32 some = scale >= EX_TINY_SCALE;
    *r = reciprocal_11(some ? scale : 1.0f);
    *d = !finite ? EX_FLOAT(0x7FC00000u) : some ? scale : 0.0f;
    return some;
}

/* The largest |x| of four elements, or `top`, as bits. */
KFN u32 act_top(THR const float *v, u32 top)
{
    UNROLL
    for (u32 i = 0; i < 4; i++) {
        u32 u = EX_BITS(v[i]) & 0x7FFFFFFFu;
        top = u > top ? u : top;
    }
    return top;
}

/* Four elements' integers. v * r + magic has the integer in its lowest bits: 0x4B400000 + q, |q| <= 127. */
KFN u32 act_integers(THR const float *v, float r)
{
    u32 word = 0;
    UNROLL
    for (u32 i = 0; i < 4; i++)
        word |= (EX_BITS(v[i] * r + EX_MAGIC) & 255u) << 8 * i;
    return word;
}

/* v[0..4): a lane's elements. Returns its word of integers; *d the block's scale, *sum the sum of its integers: the
 * same in its eight lanes. A block of zeros gives zeros, a block with a NaN or an infinity zeros and d = NaN. All 32
 * lanes call. */
KFN u32 act_quantise_8(struct at at, THR const float *v, THR float *d, THR i32 *sum)
{
    u32 top = act_top(v, 0u);
    UNROLL
    for (u32 m = 1; m < 8; m *= 2) {
        u32 u = shuffle_xor(at, top, m);
        top = u > top ? u : top;
    }
    float r;
    u32 some = act_scale(top, &r, d), word = some ? act_integers(v, r) : 0u;
    i32 total = dot4(word, 0x01010101u, 0);
    UNROLL
    for (u32 m = 1; m < 8; m *= 2)
        total += (i32)shuffle_xor(at, (u32)total, m);
    *sum = total;
    return word;
}

/* The same for a block that four lanes hold: lane q elements 4q .. 4q + 3 and 16 + 4q .., whose words are neighbours in
 * an act row. there: 0 for a block of zeros, whatever v is. */
KFN w2 act_quantise_4(struct at at, bool there, THR const float *v, THR float *d, THR i32 *sum)
{
    u32 top = there ? act_top(v + 4, act_top(v, 0u)) : 0u;
    UNROLL
    for (u32 m = 1; m < 4; m *= 2) {
        u32 u = shuffle_xor(at, top, m);
        top = u > top ? u : top;
    }
    float r;
    u32 some = act_scale(top, &r, d);
    w2 word = {some ? act_integers(v, r) : 0u, some ? act_integers(v + 4, r) : 0u};
    i32 total = dot4(word.y, 0x01010101u, dot4(word.x, 0x01010101u, 0));
    UNROLL
    for (u32 m = 1; m < 4; m *= 2)
        total += (i32)shuffle_xor(at, (u32)total, m);
    *sum = total;
    return word;
}

/* The same for a block that 32 lanes hold, an element each: its integer. */
KFN i32 act_quantise_32(struct at at, float v, THR float *d, THR i32 *sum)
{
    float r;
    u32 some = act_scale(simd_max_u32(at, EX_BITS(v) & 0x7FFFFFFFu), &r, d);
    i32 q = some ? (i32)EX_BITS(v * r + EX_MAGIC) - 0x4B400000 : 0;
    *sum = simd_sum_i32(at, q);
    return q;
}

/* Where word w of block b lies among an act row's words of integers. */
KFN u32 act_word(u32 b, u32 w)
{
    return b / 2 * 16 + w % 4 * 4 + b % 2 * 2 + w / 4;
}

/* The same for two blocks that 32 lanes hold, two neighbouring elements a lane: lane l gets element l of each. */
KFN void act_quantise_64(struct at at, THR const float *v, THR i32 *q, THR float *d, THR i32 *sum)
{
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 from = 16u * k + at.lane / 2u, a = shuffle_from(at, EX_BITS(v[0]), from), b = shuffle_from(at, EX_BITS(v[1]), from);
        q[k] = act_quantise_32(at, EX_FLOAT(at.lane % 2u ? b : a), &d[k], &sum[k]);
    }
}

/* An element, lane, of block b into an act row, and by lane 0 the block's scale and sum. */
KFN void act_put_32(struct at at, DEV u8 *act, u32 n_pad, u32 b, i32 q, float d, i32 sum)
{
    act[4u * act_word(b, at.lane / 4u) + at.lane % 4u] = (u8)(u32)q;
    if (at.lane == 0u) {
        ((DEV float *)(act + n_pad))[b] = d;
        ((DEV i32 *)(act + n_pad))[n_pad / 32u + b] = sum;
    }
}

/* What act_quantise_8 gave of elements i..i+3 of a row (i = 4 * lane + a multiple of 128) into its act row of n_pad elements; nothing past n_pad. */
KFN void act_place_8(DEV u8 *act, u32 n_pad, u32 i, u32 word, float d, i32 sum)
{
    if (i >= n_pad)
        return;
    ((DEV u32 *)act)[act_word(i / 32, i / 4 % 8)] = word;
    if (i % 32 == 0) {
        ((DEV float *)(act + n_pad))[i / 32] = d;
        ((DEV i32 *)(act + n_pad))[n_pad / 32 + i / 32] = sum;
    }
}

/* Quantises them and puts them there. All 32 lanes call. */
KFN void act_put_8(struct at at, DEV u8 *act, u32 n_pad, u32 i, THR const float *v)
{
    float d;
    i32 sum;
    u32 word = act_quantise_8(at, v, &d, &sum);
    act_place_8(act, n_pad, i, word, d, sum);
}

#endif
