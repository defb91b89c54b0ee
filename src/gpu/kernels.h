/* All kernels, in one text. KERNEL_FILE numbers the file that a barrier stands in. */
#ifndef PS_GPU_KERNELS_H
#define PS_GPU_KERNELS_H

#include "gpu/args.h"
#include "gpu/gpu.h"
#include "gpu/layout.h"

#include "gpu/k_act.h"

#undef KERNEL_FILE
#define KERNEL_FILE 1
#include "gpu/k_rows.h"
#undef KERNEL_FILE
#define KERNEL_FILE 2
#include "gpu/k_choose.h"
#include "gpu/k_route.h"
#undef KERNEL_FILE
#define KERNEL_FILE 3
#include "gpu/k_store.h"
#undef KERNEL_FILE
#define KERNEL_FILE 4
#include "gpu/k_softmax.h"
#include "gpu/k_attend.h"
#include "gpu/k_join.h"
#undef KERNEL_FILE
#define KERNEL_FILE 5
#include "gpu/k_prompt.h"
#undef KERNEL_FILE
#define KERNEL_FILE 6
#include "gpu/k_stage.h"
#undef KERNEL_FILE
#define KERNEL_FILE 7
#include "gpu/k_product.h"
#undef KERNEL_FILE
#define KERNEL_FILE 18
#include "gpu/k_chosen.h"
#undef KERNEL_FILE
#define KERNEL_FILE 8
#include "gpu/k_experts.h"
#undef KERNEL_FILE
#define KERNEL_FILE 14
#include "gpu/k_twin.h"
#undef KERNEL_FILE
#define KERNEL_FILE 15
#include "gpu/k_few.h"
#undef KERNEL_FILE
#define KERNEL_FILE 16
#include "gpu/k_few_experts.h"
#undef KERNEL_FILE
#define KERNEL_FILE 17
#include "gpu/k_dense.h"
#undef KERNEL_FILE
#define KERNEL_FILE 9
#include "gpu/k_many.h"
#undef KERNEL_FILE
#define KERNEL_FILE 10
#include "gpu/k_float.h"
#undef KERNEL_FILE
#define KERNEL_FILE 13
#include "gpu/k_router.h"
#undef KERNEL_FILE
#define KERNEL_FILE 11
#include "gpu/k_pick.h"
#undef KERNEL_FILE
#define KERNEL_FILE 12
#include "gpu/k_probe.h"

#endif
