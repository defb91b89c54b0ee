/* The numbers that shape a model, read from a GGUF's metadata and checked: no zero, no NaN, nothing that later
 * arithmetic could overflow or index past. One struct for every architecture; what an architecture fixes by
 * convention (rope style, norm placement, expert weighting) is a field here, so that no one else asks the name. */
#ifndef PS_HPARAMS_H
#define PS_HPARAMS_H

#include "model/gguf.h"

enum arch { ARCH_QWEN3MOE, ARCH_QWEN3, ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN2MOE, ARCH_OLMOE, ARCH_COUNT };

enum { /* limits that keep every product of dimensions within 64 bits; far above any real model */
    MAX_D_MODEL = 65536, MAX_LAYERS = 1024, MAX_HEADS = 1024, MAX_D_HEAD = 1024, MAX_D_FF = 1 << 20,
    MAX_EXPERTS = 1024, MAX_USED = 64, MAX_VOCAB = 1 << 22, MAX_CTX = 1 << 24
};

enum { MIN_LAYER_TENSORS = 9 }; /* attn_norm, q, k, v, output, ffn_norm and three more: bounds block_count */

struct hparams {
    enum arch arch;
    char name[64];        /* general.name, escaped; "" when absent */
    u32 d_model, n_layers, n_vocab;
    u32 n_heads, n_kv;    /* n_heads is a multiple of n_kv */
    u32 d_head;           /* of q, k and v; even */
    u32 d_ff;             /* dense layers; 0 when there are none */
    u32 n_experts, n_used; /* 0 and 0 for a dense model */
    u32 d_ff_exp;         /* width of one expert */
    u32 d_ff_shared;      /* width of the shared expert (qwen2moe); 0: none */
    u32 n_ctx;            /* the longest context the file allows (already cut to a sliding window, if any) */
    bool window_cut;      /* n_ctx was cut to the sliding window */
    u32 d_rope;           /* dimensions of a head that rotate, even, <= d_head */
    bool rope_neox;       /* pairs (i, i + d_rope/2); else (2i, 2i + 1) */
    float rope_base, rope_scale; /* angle = position * rope_scale * base^(-2i/d_rope) / rope_factors[i] */
    float eps;            /* of every RMSNorm */
    bool used_norm;       /* the chosen experts' weights are renormalised to sum 1 */
    float used_scale;     /* and multiplied by this: 1 unless the file says otherwise */
    u64 n_params;         /* elements of all tensors */
};

const char *hparams_arch_name(enum arch arch); /* as general.architecture spells it */

/* Reads and checks. Keys that would change the arithmetic in a way no field above describes (soft caps, clamps,
 * YaRN, sigmoid routing, ...) are refused unless neutral. err names file, key, value and wish. */
int hparams_read(struct hparams *hp, const struct gguf *g, struct err *err);

#endif
