/* Prints the instruction sets that this machine runs, best last: for run.sh. */
#include "kernel/kernel.h"

#include <stdio.h>

int main(void)
{
    const char *names[16];
    u32 n = kernels_list(names, COUNT(names));
    for (u32 i = 0; i < n; i++)
        printf("%s%s", i ? " " : "", names[i]);
    printf("\n");
    return 0;
}
