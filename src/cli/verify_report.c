/* See verify_report.h. */
#include "cli/verify_report.h"

#include "base/sysmem.h"
#include "kernel/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

void verify_report_cpu(char *buf, size_t n)
{
    snprintf(buf, n, "unknown");
#ifdef __APPLE__
    size_t len = n;
    if (sysctlbyname("machdep.cpu.brand_string", buf, &len, NULL, 0))
        snprintf(buf, n, "unknown");
#else
    static const char *const keys[] = {"model name", "Model",
                                       "uarch"}; /* x86, Arm boards, RISC-V */
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        bool known = false;
        for (u32 i = 0; i < COUNT(keys); i++)
            known |= strncmp(line, keys[i], strlen(keys[i])) == 0;
        if (!known || !colon)
            continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(buf, n, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (f)
        fclose(f);
#endif
}

void verify_report_print(const struct verify_report *r, FILE *f)
{
    struct utsname sys = {0};
    struct ps_model_info info;
    const char *isas[16];
    char cpu[256];
    u32 n = kernels_list(isas, COUNT(isas));
    uname(&sys);
    ps_model_info(r->model, &info);
    verify_report_cpu(cpu, sizeof cpu);
    fprintf(f, "plainsong %s\nsystem    %s %s, %s\ncpu       %s, %u cores\nsets      ",
            ps_version(), sys.sysname, sys.release, sys.machine, cpu, r->n_cores);
    for (u32 i = 0; i < n; i++)
        fprintf(f, "%s%s", i ? " " : "", isas[i]);
    fprintf(f, "\ndevice    %s, %s", r->device, r->isa);
    if (r->n_threads)
        fprintf(f, ", %u thread%s", r->n_threads, r->n_threads == 1 ? "" : "s");
    if (r->self_test)
        fprintf(f, "\nself-test %s", r->self_test);
    fprintf(f, "\nmemory    %.1f GB available\n", (double)sysmem_available() / 1e9);
    fprintf(f, "model     %s, %s, %.1f M parameters, %llu bytes, file hash %016llx\n", info.name,
            info.arch, (double)info.n_params / 1e6, (unsigned long long)info.file_bytes,
            (unsigned long long)r->file);
    fprintf(f, "golden    %s\n\n%s\n%s", r->golden, r->settings, r->last);
}
