/* The frozen number of each known model: the hash over the logits of a fixed small set of texts,
 * which every machine, instruction set and build must give. It changes only when the numerics
 * contract does. */
#ifndef PS_VERIFY_GOLDEN_H
#define PS_VERIFY_GOLDEN_H

#include "cli/verify_text.h"

struct ps_model;

/* The fixed set: the wish its texts are made from. */
extern const struct verify_wish verify_golden_wish;

/* A hash over the bytes of the model's files: which model it is. Reads all of them. */
u64 verify_golden_file(const struct ps_model *m);

/* The number known for a file and a KV type ("f16"), under the contract this program keeps; false:
 * not a known one. */
bool verify_golden_known(const struct ps_model *m, const char *kv, u64 *hash);

#endif
