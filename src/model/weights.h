/* The model's tensors under the names the plan uses, each checked for type and shape. Views into the mapped
 * file: valid while the gguf is open. Shapes are written outermost first: (rows, columns), rows = outputs. */
#ifndef PS_WEIGHTS_H
#define PS_WEIGHTS_H

#include "model/hparams.h"

struct layer_weights { /* NULL where the layer has none */
    const struct gguf_tensor *attn_norm;          /* (d_model) */
    const struct gguf_tensor *q, *k, *v;          /* (n_heads*d_head, d_model), (n_kv*d_head, d_model) twice */
    const struct gguf_tensor *q_bias, *k_bias, *v_bias, *o_bias;
    const struct gguf_tensor *q_norm, *k_norm;    /* (d_head): each head; olmoe (n_heads*d_head): the whole row */
    const struct gguf_tensor *o;                  /* (d_model, n_heads*d_head) */
    const struct gguf_tensor *ffn_norm;           /* (d_model) */
    const struct gguf_tensor *gate, *up, *down;   /* dense: (d_ff, d_model) twice, (d_model, d_ff) */
    const struct gguf_tensor *router;             /* (n_experts, d_model); NULL: this layer is dense */
    const struct gguf_tensor *gate_exps, *up_exps; /* (n_experts, d_ff_exp, d_model) */
    const struct gguf_tensor *down_exps;          /* (n_experts, d_model, d_ff_exp) */
    const struct gguf_tensor *shared_gate, *shared_up, *shared_down; /* (d_ff_shared, d_model) twice, back */
    const struct gguf_tensor *shared_router;      /* (d_model): its sigmoid weighs the shared expert */
};

struct weights {
    struct hparams hp;
    const struct gguf_tensor *embed;        /* (n_vocab, d_model) */
    const struct gguf_tensor *output_norm;  /* (d_model) */
    const struct gguf_tensor *output;       /* (n_vocab, d_model); the same as embed when tied */
    const struct gguf_tensor *rope_factors; /* (d_rope/2) f32, or NULL */
    struct layer_weights *layers;           /* [n_layers] */
};

/* Finds and checks every tensor the architecture needs. Norms and biases must be F32, F16 or BF16. On failure
 * nothing is left behind. A tensor the architecture does not know is ignored unless its name belongs to a layer
 * (then the result would be wrong: refused). */
int weights_open(struct weights *w, const struct gguf *g, struct err *err);
void weights_close(struct weights *w);

#endif
