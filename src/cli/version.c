/* The one file that is compiled anew when the version or the commit changes (see the Makefile). */
#include "cli/cli.h"
#include "kernel/kernel.h"

#include <stdio.h>

const char *version_commit(void)
{
    return PS_COMMIT;
}

void version_print(void)
{
    const char *isas[16];
    u32 n = kernels_list(isas, COUNT(isas));
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    printf("plainsong %s (commit %s)\ncompiler: %s\ninstruction sets:", PS_VERSION, PS_COMMIT,
           compiler);
    for (u32 i = 0; i < n && i < COUNT(isas); i++)
        printf(" %s", isas[i]);
    putchar('\n');
}
