/* Finds and opens the CUDA backend: libplainsong-cuda.so (cuda_plugin.c), which lies beside the program or library that asks, or in lib
 * beside its bin, or where PLAINSONG_CUDA says. So the program itself links nothing of CUDA. A plug-in of other headers than this
 * program's is refused: structs are shared. Once open it stays until the process ends. */
#include "device/dev_gpu.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLUGIN "libplainsong-cuda.so"

static const u32 ABI = PS_GPU_ABI; /* a sum over the headers, from the Makefile */

/* The folder of the program or library that this text is in; of a program the loader may know only the name it was called by. */
static int own_folder(char dir[PATH_MAX])
{
    Dl_info info;
    char path[PATH_MAX];
    const char *name = dladdr(&ABI, &info) ? info.dli_fname : NULL;
    if (!name || !strchr(name, '/') || !realpath(name, path)) {
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
        if (n <= 0)
            return -1;
        path[n] = 0;
    }
    char *end = strrchr(path, '/');
    if (!end)
        return -1;
    *end = 0;
    strcpy(dir, path);
    return 0;
}

static bool look_in(const char *dir, const char *below, char path[PATH_MAX])
{
    size_t n = strlen(dir), m = strlen(below);
    if (n + m + sizeof "/" PLUGIN > PATH_MAX)
        return false;
    memcpy(path, dir, n);
    memcpy(path + n, below, m);
    memcpy(path + n + m, "/" PLUGIN, sizeof "/" PLUGIN);
    return access(path, F_OK) == 0;
}

static const struct gpu_backend *refuse(struct err *err, const char *path, const char *why)
{
    char quoted[256];
    err_set(err, "--device cuda: %s: %s", err_quote(quoted, sizeof quoted, path, strlen(path)), why);
    return NULL;
}

/* Opening a pipe would wait for its writer. The whole path: a name without a slash is looked for elsewhere. */
static bool is_file(const char *path, char whole[PATH_MAX])
{
    struct stat st;
    return realpath(path, whole) && stat(whole, &st) == 0 && S_ISREG(st.st_mode);
}

/* The loader's words, which begin with the path as a rule. */
static const char *loader_error(const char *path)
{
    const char *why = dlerror();
    size_t n = strlen(path);
    if (!why)
        return "cannot be opened";
    return !strncmp(why, path, n) && !strncmp(why + n, ": ", 2) ? why + n + 2 : why;
}

const struct gpu_backend *gpu_backend_cuda(struct err *err)
{
    char dir[PATH_MAX] = "", found[PATH_MAX], whole[PATH_MAX];
    const char *path = getenv("PLAINSONG_CUDA");
    if (path && *path) {
        if (access(path, F_OK))
            return refuse(err, path, "no such file (PLAINSONG_CUDA names it)");
    } else if (!own_folder(dir) && (look_in(dir, "", found) || look_in(dir, "/../lib", found))) {
        path = found;
    } else {
        char quoted[256];
        err_set(err, "--device cuda: %s is not built: not in %s, nor in ../lib from there; `make cuda` builds it and needs nvcc (NVIDIA's CUDA 13)",
                PLUGIN, err_quote(quoted, sizeof quoted, dir, strlen(dir)));
        return NULL;
    }
    if (!is_file(path, whole))
        return refuse(err, path, "is not a file");
    void *lib = dlopen(whole, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return refuse(err, path, loader_error(whole));
    const u32 *abi = dlsym(lib, "plainsong_cuda_abi");
    const struct gpu_backend *(*backend)(void) = NULL;
    *(void **)&backend = dlsym(lib, "plainsong_cuda_backend"); /* POSIX's own way around C's two kinds of pointers */
    if (!abi || !backend)
        return refuse(err, path, "not plainsong's");
    if (*abi != ABI)
        return refuse(err, path, "of another version than this program; `make cuda` builds this one's");
    const struct gpu_backend *b = backend();
    return b ? b : refuse(err, path, "gives no backend");
}
