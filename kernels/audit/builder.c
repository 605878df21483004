/* builder: runs one compiler in a box and waits for it.

   builder LIFELINE BOX ADDRESS_BYTES CPU_S FILE_BYTES [-r PATH | -w PATH]... -- COMMAND ARGUMENT...

   The compiler may read the -r paths, write the -w paths, and reach no network. When the lifeline (a pipe that the
   auditor holds) closes, the whole process group is killed, so that no compiler outlives a killed auditor.
   BOX 0 sets only the resource limits; BOX 1 fails (exit 125) when Landlock or seccomp is refused. */
#include "sandbox.h"
#include <poll.h>
#include <sys/wait.h>

enum { REFUSED = 125 };

static _Noreturn void refuse(const char *what)
{
    dprintf(2, "builder: %s: %s\n", what, strerror(errno));
    _exit(REFUSED);
}

static void deny_network(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_AUDIT_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socketpair, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_ptrace, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_writev, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
    };
    if (seccomp_enter(filter, sizeof filter / sizeof *filter) != 0) refuse("seccomp");
}

static _Noreturn void compile(char **argument, int box)
{
    uint64_t handled = 0;
    int ruleset = box ? landlock_open(&handled) : -1;
    if (box && ruleset < 0) refuse("landlock");
    for (; *argument && strcmp(*argument, "--") != 0; argument += 2)
        if (box && landlock_allow(ruleset, handled, argument[1], strcmp(*argument, "-w") == 0) != 0)
            refuse(argument[1]);
    if (!*argument || !argument[1]) refuse("no command");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) refuse("no_new_privs");
    if (box && landlock_enter(ruleset) != 0) refuse("landlock");
    if (box) deny_network();
    execv(argument[1], argument + 1);
    refuse(argument[1]);
}

static volatile sig_atomic_t child_ended;
static void on_child(int signal) { (void)signal; child_ended = 1; }

int main(int count, char **argument)
{
    if (count < 8) return REFUSED;
    int lifeline = atoi(argument[1]), box = atoi(argument[2]);
    follow_parent();
    fcntl(lifeline, F_SETFD, FD_CLOEXEC);
    if (limit(RLIMIT_AS, strtoull(argument[3], NULL, 10)) != 0 || limit(RLIMIT_CPU, strtoull(argument[4], NULL, 10)) != 0
        || limit(RLIMIT_FSIZE, strtoull(argument[5], NULL, 10)) != 0 || limit(RLIMIT_CORE, 0) != 0)
        refuse("rlimit");
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    signal(SIGCHLD, on_child);
    pid_t child = fork();
    if (child < 0) refuse("fork");
    if (child == 0) {
        setpgid(0, 0);
        follow_parent();
        sigprocmask(SIG_SETMASK, &before, NULL);
        compile(argument + 6, box);
    }
    setpgid(child, child);
    struct pollfd held = {lifeline, POLLIN, 0};
    while (!child_ended && ppoll(&held, 1, NULL, &before) < 0 && errno == EINTR) continue;
    if (!child_ended) kill(-child, SIGKILL);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    kill(-child, SIGKILL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
