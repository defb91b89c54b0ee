/* Stands for dev_cuda.c in programs that are linked statically: those open no plug-in. */
#include "device/dev_gpu.h"

const struct gpu_backend *gpu_backend_cuda(struct err *err)
{
    err_set(err, "--device cuda: not in a static program");
    return NULL;
}
