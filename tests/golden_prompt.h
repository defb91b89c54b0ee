/* The prompt of the golden run, as text and as plainsong-tiny's ids: where there is no tokenizer (tests/arm) the ids
 * are what is run. tests/test_golden_prompt.c holds the two together. */
#ifndef PS_GOLDEN_PROMPT_H
#define PS_GOLDEN_PROMPT_H

#include <stdint.h>

static const char GOLDEN_PROMPT[] = "<|im_start|>user\nTell me a tale about a fox and a lantern.<|im_end|>\n"
                                    "<|im_start|>assistant\n";
static const uint32_t GOLDEN_IDS[] = {4088, 282,  198, 662, 331,  259, 504,  445, 259, 2119,
                                      293,  259, 2432, 13,  4089, 198, 4088, 284, 198};

#endif
