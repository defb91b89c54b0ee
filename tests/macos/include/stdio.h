#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>
typedef struct macos_file FILE;
extern FILE *__stdinp, *__stdoutp, *__stderrp;
#define stdin __stdinp
#define stdout __stdoutp
#define stderr __stderrp
#define EOF (-1)
#define BUFSIZ 1024
#define _IOFBF 0
#define _IOLBF 1
#define _IONBF 2
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
#define MACOS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define MACOS_SCANF(f, a) __attribute__((format(scanf, f, a)))
int fclose(FILE *);
FILE *fdopen(int, const char *);
int feof(FILE *);
int ferror(FILE *);
int fflush(FILE *);
int fgetc(FILE *);
char *fgets(char *, int, FILE *);
int fileno(FILE *);
void flockfile(FILE *);
void funlockfile(FILE *);
FILE *fopen(const char *, const char *);
FILE *freopen(const char *, const char *, FILE *);
FILE *popen(const char *, const char *);
int pclose(FILE *);
int fprintf(FILE *, const char *, ...) MACOS_PRINTF(2, 3);
int fputc(int, FILE *);
int fputs(const char *, FILE *);
size_t fread(void *, size_t, size_t, FILE *);
int fscanf(FILE *, const char *, ...) MACOS_SCANF(2, 3);
int fseek(FILE *, long, int);
int fseeko(FILE *, off_t, int);
long ftell(FILE *);
off_t ftello(FILE *);
size_t fwrite(const void *, size_t, size_t, FILE *);
int getc(FILE *);
int getchar(void);
ssize_t getline(char **, size_t *, FILE *);
FILE *fmemopen(void *, size_t, const char *);
FILE *open_memstream(char **, size_t *);
void perror(const char *);
int printf(const char *, ...) MACOS_PRINTF(1, 2);
int putc(int, FILE *);
int putchar(int);
int puts(const char *);
int remove(const char *);
int rename(const char *, const char *);
void rewind(FILE *);
int setvbuf(FILE *, char *, int, size_t);
int snprintf(char *, size_t, const char *, ...) MACOS_PRINTF(3, 4);
int sprintf(char *, const char *, ...) MACOS_PRINTF(2, 3);
int sscanf(const char *, const char *, ...) MACOS_SCANF(2, 3);
FILE *tmpfile(void);
int ungetc(int, FILE *);
int vfprintf(FILE *, const char *, va_list) MACOS_PRINTF(2, 0);
int vsnprintf(char *, size_t, const char *, va_list) MACOS_PRINTF(3, 0);
