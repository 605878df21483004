/* What a process gives up before it runs what it does not trust: files, system calls, resources.
   Everything here is the kernel's own interface, so that no package beyond a C compiler is needed. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OUR_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_AUDIT_ARCH AUDIT_ARCH_AARCH64
#else
#define OUR_AUDIT_ARCH 0
#endif

/* Landlock's numbers, spelled out because older headers lack them. */
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_add_rule 445
#define __NR_landlock_restrict_self 446
#endif
#define FS_READ (1ULL << 2 | 1ULL << 3)                /* read file, read directory */
#define FS_EXECUTE (1ULL << 0)
#define FS_ALL_V1 ((1ULL << 13) - 1)

struct ruleset { uint64_t fs, net, scoped; };
struct __attribute__((packed)) path_rule { uint64_t allowed; int32_t parent; };

static inline int limit(int resource, rlim_t value)
{
    struct rlimit both = {value, value}, now;
    if (getrlimit(resource, &now) == 0 && now.rlim_max < value) both.rlim_cur = both.rlim_max = now.rlim_max;
    return setrlimit(resource, &both);
}

static inline int landlock_version(void)
{
    return (int)syscall(__NR_landlock_create_ruleset, NULL, 0, 1);
}

/* A ruleset that handles all that this kernel's Landlock knows; -1 where there is none. `scoped`: 1 keeps abstract
   sockets inside, 2 signals. */
static inline int landlock_open_scoped(uint64_t *handled, uint64_t scoped)
{
    int version = landlock_version();
    if (version < 1) return -1;
    *handled = FS_ALL_V1 | (version >= 2 ? 1ULL << 13 : 0) | (version >= 3 ? 1ULL << 14 : 0)
             | (version >= 5 ? 1ULL << 15 : 0);
    struct ruleset rules = {*handled, version >= 4 ? 3 : 0, version >= 6 ? scoped : 0};
    size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    return (int)syscall(__NR_landlock_create_ruleset, &rules, size, 0);
}

static inline int landlock_open(uint64_t *handled) { return landlock_open_scoped(handled, 3); }

static inline int landlock_allow(int ruleset, uint64_t handled, const char *path, int writable)
{
    struct stat status;
    int parent = open(path, O_PATH | O_CLOEXEC);
    if (parent < 0) return errno == ENOENT || errno == EACCES ? 0 : -1;
    uint64_t allowed = writable ? handled : (FS_READ | FS_EXECUTE);
    if (fstat(parent, &status) == 0 && !S_ISDIR(status.st_mode))
        allowed &= 1ULL << 0 | 1ULL << 1 | 1ULL << 2 | 1ULL << 14 | 1ULL << 15;
    struct path_rule rule = {allowed & handled, parent};
    int result = (int)syscall(__NR_landlock_add_rule, ruleset, 1, &rule, 0);
    close(parent);
    return result;
}

static inline int landlock_enter(int ruleset)
{
    int result = (int)syscall(__NR_landlock_restrict_self, ruleset, 0);
    close(ruleset);
    return result;
}

static inline int seccomp_enter(struct sock_filter *filter, size_t length)
{
    struct sock_fprog program = {(unsigned short)length, filter};
    return (int)syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* Die with the process that started us, even when it is killed. */
static inline void follow_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}

static inline void pin(int cpu)
{
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}
