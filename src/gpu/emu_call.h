/* The kernels as C functions: what the emulator (emu.c) runs in each lane. Apart from it so that it is compiled when a kernel
 * changes and emu.c is not. */
#ifndef PS_EMU_CALL_H
#define PS_EMU_CALL_H

#include "gpu/args.h"

void emu_call(enum gpu_kernel kernel, struct at at, const union gpu_args *args, const struct bufs *b, u32 *shm);
const char *emu_name(enum gpu_kernel kernel);

#endif
