/* The kernels for Apple's compiler, which the Metal backend hands to it at start: one text with all includes in
 * their places, made at build time by tools/metal_text.sh from src/gpu. In METAL builds only. */
extern const char gpu_metal_text[];
const char gpu_metal_text[] = {
#include "metal_text.h"
    0};
