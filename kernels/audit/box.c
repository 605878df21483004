/* box: loaded into a process that will run a candidate's host code; what that process gives up, in two steps.

   box_ancestor  once, in the process that all candidates' processes are forked from
   box_candidate in each of them, once its device is open and before anything of the candidate is loaded

   A GPU's driver and a just-in-time compiler need many system calls, so these filters name what is refused, where
   the runner's names what is allowed. Both return NULL or the name of what this kernel refused. */
#include "sandbox.h"
#include <sys/socket.h>

enum { MOST_RULES = 160 };
static const uint32_t NEW_NAMESPACES = 0x7e020080u; /* CLONE_NEW{USER,PID,NET,NS,CGROUP,UTS,IPC,TIME} */

/* Nobody's process here looks into another, enters a namespace, or reaches past its files. */
static const int never[] = {
    __NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev, __NR_unshare, __NR_setns, __NR_mount, __NR_umount2,
    __NR_pivot_root, __NR_chroot, __NR_bpf, __NR_perf_event_open, __NR_userfaultfd, __NR_keyctl, __NR_add_key,
    __NR_request_key, __NR_init_module, __NR_finit_module, __NR_delete_module, __NR_kexec_load, __NR_reboot,
    __NR_swapon, __NR_swapoff, __NR_open_by_handle_at, __NR_name_to_handle_at, __NR_clock_settime, __NR_settimeofday,
    __NR_adjtimex, __NR_clock_adjtime, __NR_acct, __NR_quotactl, __NR_syslog, __NR_shmget, __NR_msgget, __NR_semget,
    __NR_mq_open, 425 /* io_uring_setup */, 438 /* pidfd_getfd */,
};
/* A candidate besides opens no socket, leaves neither its process group nor its session (so one kill ends all that it
   started), and changes no scheduling. */
static const int never_candidate[] = {
    __NR_socket, __NR_socketpair, __NR_connect, __NR_bind, __NR_listen, __NR_accept, __NR_accept4, __NR_setsid,
    __NR_setpgid, __NR_sched_setaffinity, __NR_sched_setscheduler, __NR_sched_setparam, __NR_setpriority,
    __NR_tkill, __NR_rt_sigqueueinfo, __NR_rt_tgsigqueueinfo, 424 /* pidfd_send_signal */, 434 /* pidfd_open */,
};

static struct sock_filter rules[MOST_RULES];
static size_t rule_count;

static void rule(struct sock_filter one) { if (rule_count < MOST_RULES) rules[rule_count++] = one; }
static void answer(uint32_t how) { rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, how)); }
static void load(uint32_t at) { rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at)); }

static void refuse_each(const int *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)numbers[i], 0, 1));
        answer(SECCOMP_RET_ERRNO | EACCES);
    }
}

/* Refuse `number` unless the low word of argument `index` is `value`. */
static void refuse_unless(int number, int index, uint32_t value)
{
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 4));
    load((uint32_t)(offsetof(struct seccomp_data, args) + sizeof(uint64_t) * (size_t)index));
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0));
    answer(SECCOMP_RET_ERRNO | EACCES);
    load(offsetof(struct seccomp_data, nr));
}

static void open_filter(void)
{
    rule_count = 0;
    load(offsetof(struct seccomp_data, arch));
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_AUDIT_ARCH, 1, 0));
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(struct seccomp_data, nr));
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1));
    answer(SECCOMP_RET_KILL_PROCESS);
}

static int close_filter(void)
{
    answer(SECCOMP_RET_ALLOW);
    return rule_count < MOST_RULES ? seccomp_enter(rules, rule_count) : -1;
}

static int filter_ancestor(void)
{
    open_filter();
    refuse_each(never, sizeof never / sizeof *never);
    refuse_unless(__NR_socket, 0, AF_UNIX);
    refuse_unless(__NR_prlimit64, 0, 0);
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 0, 1));
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 4));
    load(offsetof(struct seccomp_data, args));
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1));
    answer(SECCOMP_RET_ERRNO | EACCES);
    load(offsetof(struct seccomp_data, nr));
    return close_filter();
}

static int filter_candidate(void)
{
    open_filter();
    refuse_each(never_candidate, sizeof never_candidate / sizeof *never_candidate);
    refuse_unless(__NR_kill, 0, (uint32_t)getpid());
    refuse_unless(__NR_tgkill, 0, (uint32_t)getpid());
    return close_filter();
}

/* Give up every capability, for good. An ordinary user has none. */
static int drop_capabilities(void)
{
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } none[2] = {{0, 0, 0}, {0, 0, 0}};
    for (int capability = 0; capability < 64; capability++) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    return (int)syscall(__NR_capset, &head, none);
}

/* Only these paths, each list ended by NULL; `scoped` as in struct ruleset. */
static int close_files(const char *const *reads, const char *const *writes, uint64_t scoped)
{
    uint64_t handled = 0;
    int ruleset = landlock_open_scoped(&handled, scoped);
    if (ruleset < 0) return -1;
    for (; *reads; reads++)
        if (landlock_allow(ruleset, handled, *reads, 0) != 0) return -1;
    for (; *writes; writes++)
        if (landlock_allow(ruleset, handled, *writes, 1) != 0) return -1;
    return landlock_enter(ruleset);
}

const char *box_ancestor(const char *const *reads, const char *const *writes)
{
    if (drop_capabilities() != 0) return "capset";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs";
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return "subreaper";
    /* Signals stay inside; abstract sockets do not yet, as the driver shares device memory through one. */
    if (close_files(reads, writes, 2) != 0) return "landlock";
    return filter_ancestor() == 0 ? NULL : "seccomp";
}

const char *box_candidate(const char *const *reads, const char *const *writes)
{
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (close_files(reads, writes, 3) != 0) return "landlock";
    return filter_candidate() == 0 ? NULL : "seccomp";
}
