#pragma once
#include <sys/types.h>
typedef struct macos_dir DIR;
struct dirent {
    uint64_t d_ino, d_seekoff;
    uint16_t d_reclen, d_namlen;
    uint8_t d_type;
    char d_name[1024];
};
int closedir(DIR *);
DIR *opendir(const char *);
struct dirent *readdir(DIR *);
