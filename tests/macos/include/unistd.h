#pragma once
#include <sys/types.h>
#define STDIN_FILENO 0
#define STDOUT_FILENO 1
#define STDERR_FILENO 2
#define F_OK 0
#define X_OK 1
#define W_OK 2
#define R_OK 4
#define _SC_PAGESIZE 29
#define _SC_NPROCESSORS_ONLN 58
#define _SC_PHYS_PAGES 200
void _exit(int) __attribute__((noreturn));
int access(const char *, int);
unsigned int alarm(unsigned int);
int chdir(const char *);
char *getcwd(char *, size_t);
int symlink(const char *, const char *);
int rmdir(const char *);
int pause(void);
pid_t fork(void);
pid_t getppid(void);
uid_t geteuid(void);
int execv(const char *, char *const[]);
int execvp(const char *, char *const[]);
off_t lseek(int, off_t, int);
unsigned int sleep(unsigned int);
int close(int);
int dup(int);
int dup2(int, int);
int fsync(int);
int ftruncate(int, off_t);
pid_t getpid(void);
uid_t getuid(void);
int isatty(int);
int pipe(int[2]);
ssize_t pread(int, void *, size_t, off_t);
ssize_t read(int, void *, size_t);
ssize_t readlink(const char *, char *, size_t);
long sysconf(int);
int unlink(const char *);
int usleep(useconds_t);
ssize_t write(int, const void *, size_t);
