/* Shared memory of a launch. The formulas stand in gpu/layout.h, beside the layouts they come from. */
#include "device/dev_gpu.h"

#include "gpu/layout.h"

enum { SHM_METAL = 32768 /* what a group can have there */ };

static u32 attend_bytes(u32 heads, u32 d_head, bool q8)
{
    return q8 ? GPU_SHM_ATTEND_Q8(heads, d_head) : GPU_SHM_ATTEND_F16(heads, d_head);
}

u32 gpu_item_heads(u32 share, u32 d_head, bool q8)
{
    u32 heads = 8;
    while (share % heads || (PS_METAL && heads > 1 && attend_bytes(heads, d_head, q8) > SHM_METAL))
        heads /= 2;
    return heads;
}

static u32 prompt_heads(const struct attend_args *a)
{
    u32 share = a->n_heads / a->n_kv, heads = 1;
    while (heads < share && heads < GPU_PROMPT_HEADS)
        heads *= 2;
    return heads;
}

static u32 all_outputs(const struct product_args *a)
{
    u32 n = 0;
    for (u32 m = 0; m < a->n_mats; m++)
        n += a->n_out[m];
    return n;
}

static u32 few_bytes(enum gpu_kernel kernel, const struct product_args *a)
{
    u32 rows = kernel == GK_few_1 ? 1 : kernel == GK_few_2 ? 2 : kernel == GK_few_4 ? 4 : 8;
    return GPU_SHM_FEW(rows, a->n_in, a->source != SRC_ACT);
}

static u32 dense_bytes(enum gpu_kernel kernel, const struct product_args *a)
{
    u32 cols = kernel == GK_dense_1 ? 8 : kernel == GK_dense_2 ? 16 : 32;
    u32 bytes = GPU_TILE_BYTES(a->type[0]);
    for (u32 m = 1; m < a->n_mats; m++)
        if (GPU_TILE_BYTES(a->type[m]) > bytes)
            bytes = GPU_TILE_BYTES(a->type[m]);
    return GPU_SHM_DENSE(cols, a->n_in, bytes);
}

static u32 product_bytes(const struct product_args *a, u32 rows)
{
    return a->source == SRC_ACT ? GPU_SHM_PRODUCT(rows, a->n_in) : GPU_SHM_PRODUCT_FLOATS(rows, a->n_in);
}

static u32 fused_bytes(const struct experts_out_args *a)
{
    u32 pairs = a->fused * a->n_used;
    return a->source == SRC_ACT ? GPU_SHM_EXPERTS_FUSED_ACT(pairs, a->n_in) : GPU_SHM_EXPERTS_FUSED(pairs, a->n_in);
}

u32 gpu_shm_bytes(enum gpu_kernel kernel, const union gpu_args *args)
{
    const struct experts_out_args *out = &args->experts_out_;
    const struct attend_args *attend = &args->attend_;
    switch (kernel) {
    case GK_norm:
        return args->norm_.has_norm && GPU_NORM_HERE(args->norm_.n) ? GPU_SHM_NORM(args->norm_.n) * (1 + args->norm_.more) : GPU_SHM_NONE;
    case GK_embed_norm:
        return GPU_SHM_NORM(args->embed_norm_.norm.n);
    case GK_combine_norm:
        return GPU_SHM_NORM(args->combine_norm_.norm.n) * (1 + args->combine_norm_.norm.more);
    case GK_product_1:
        return product_bytes(&args->product_, 8);
    case GK_product_2:
        return product_bytes(&args->product_, 16);
    case GK_product_float:
        return GPU_SHM_FLOAT(args->float_.per_pair ? 1u : args->float_.rows, all_outputs(&args->float_.p));
    case GK_router:
        return GPU_SHM_ROUTER(args->router_.rows);
    case GK_product_many:
    case GK_experts_out_many:
        return GPU_SHM_MANY;
    case GK_experts_in_many:
        return GPU_SHM_MANY_IN;
    case GK_experts_in_1:
        return GPU_SHM_EXPERTS_IN(8u, args->experts_in_.n_in) + (args->few_in_.choose ? GPU_SHM_CHOSEN : 0);
    case GK_experts_in_2:
        return GPU_SHM_EXPERTS_IN(16u, args->experts_in_.n_in);
    case GK_experts_out_1:
        return out->fused ? fused_bytes(out) : GPU_SHM_EXPERTS_OUT(8u, out->n_in);
    case GK_experts_out_2:
        return GPU_SHM_EXPERTS_OUT(16u, out->n_in);
    case GK_experts_in_twin:
        return GPU_SHM_TWIN(args->experts_in_.type_gate, args->experts_in_.n_in);
    case GK_experts_out_twin:
        return GPU_SHM_TWIN(out->type, out->n_in);
    case GK_few_1:
    case GK_few_2:
    case GK_few_4:
        return few_bytes(kernel, &args->product_);
    case GK_dense_1:
    case GK_dense_2:
    case GK_dense_4:
        return dense_bytes(kernel, &args->product_);
    case GK_few_in:
        return args->few_in_.choose ? GPU_SHM_FEW_CHOOSE(args->few_in_.in.few, args->few_in_.in.n_in) : GPU_SHM_FEW_IN(args->few_in_.in.few, args->few_in_.in.n_in);
    case GK_few_out:
        return args->few_out_.choose ? GPU_SHM_FEW_OUT_CHOOSE(out->fused, out->n_used, out->n_in) : GPU_SHM_FEW_OUT(out->fused, out->n_used, out->n_in);
    case GK_route:
    case GK_group:
    case GK_route_group:
        return GPU_SHM_ROUTE(args->route_.n_experts);
    case GK_store:
        return GPU_SHM_STORE;
    case GK_attend:
    case GK_attend_store: /* its arguments begin with attend's */
        return attend_bytes(gpu_item_heads(attend->n_heads / attend->n_kv, attend->d_head, attend->kv_q8), attend->d_head, attend->kv_q8);
    case GK_prompt:
        return attend->kv_q8 ? GPU_SHM_PROMPT_Q8(prompt_heads(attend), attend->d_head) : GPU_SHM_PROMPT_F16(prompt_heads(attend), attend->d_head);
    case GK_pick_join:
        return GPU_SHM_PICK_JOIN;
    default:
        return GPU_SHM_NONE;
    }
}
