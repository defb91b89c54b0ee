/* When a step's launches, their groups and SIMD groups began, had their turn and ended: what PLAINSONG_CUDA_MODE=clock prints (cuda_plugin.c). */
#ifndef PS_CUDA_CLOCK_H
#define PS_CUDA_CLOCK_H

#include "device/cuda_entry.h"
#include "device/gpu_backend.h"

/* To stderr: a line for each kernel and the one before it, and under it the kernel's marks (MARK, gpu.h), where the plug-in was built with them. at: (launch, stride groups, CUDA_CLOCK_WORDS), of
 * n launches; as the kernels left it. Takes memory for the values of one mark; without it no line of marks. */
void cuda_clock_print(const struct gpu_launch *list, u32 n, u32 stride, const u64 *at);

#endif
