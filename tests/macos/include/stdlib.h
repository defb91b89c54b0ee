#pragma once
#include <stddef.h>
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 0x7fffffff
void abort(void) __attribute__((noreturn));
int abs(int);
void *aligned_alloc(size_t, size_t);
int atexit(void (*)(void));
double atof(const char *);
int atoi(const char *);
void *calloc(size_t, size_t);
void exit(int) __attribute__((noreturn));
void free(void *);
char *getenv(const char *);
void *malloc(size_t);
int posix_memalign(void **, size_t, size_t);
void qsort(void *, size_t, size_t, int (*)(const void *, const void *));
void *bsearch(const void *, const void *, size_t, size_t, int (*)(const void *, const void *));
void *realloc(void *, size_t);
char *realpath(const char *, char *);
double strtod(const char *, char **);
float strtof(const char *, char **);
long strtol(const char *, char **, int);
long long strtoll(const char *, char **, int);
unsigned long strtoul(const char *, char **, int);
unsigned long long strtoull(const char *, char **, int);
int mkstemp(char *);
char *mkdtemp(char *);
int setenv(const char *, const char *, int);
int unsetenv(const char *);
int system(const char *);
void srand(unsigned int);
int rand(void);
