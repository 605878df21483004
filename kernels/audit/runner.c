/* runner: loads one artifact in a box and calls its entries when told to.

   runner COMMAND_FD REPLY_FD ARTIFACT_FD INPUT_FD OUTPUT_FD BOX CPU ADDRESS_BYTES CPU_S PRINTED_BYTES

   Frames in both directions: u32 kind, u32 payload bytes, payload. The runner answers READY, DONE or ERR and knows
   neither times nor verdicts; what it says of a fault is a hint, believed only against the candidate.
     LOAD     u32 count, then names ended by zero       -> READY | ERR text
     PREPARE  a layout (see struct head)                 -> READY | ERR text
     GO       u32 layout                                 -> DONE struct done | ERR struct fault
     DROP     u32 layout                                 -> READY
   Inputs are mapped read-only from a sealed memory file, dims lie in read-only pages, and every output window stands
   between guard pages.
   BOX 1 needs Landlock and seccomp and fails without them, BOX 2 takes Landlock where it is (an outer box denies
   the files), BOX 0 sets only the resource limits. */
#include "sandbox.h"
#include <dlfcn.h>
#include <fenv.h>
#include <ucontext.h>

enum { LOAD = 1, PREPARE, GO, DROP, READY = 16, DONE, ERR };
enum { MOST_ENTRIES = 64, MOST_LAYOUTS = 64, MOST_ARGUMENTS = 16, MOST_BYTES = 8 << 20, REFUSED = 125, GUARD_PAGES = 16 };
enum { ELSEWHERE, IN_INPUT, IN_GUARD };

struct frame { uint32_t kind, bytes; };
struct head { uint32_t layout, calls; uint64_t input_offset, input_bytes; uint32_t windows, unused; };
struct window { uint64_t offset, bytes; };
struct call { uint32_t entry, arguments, dims, unused; };
struct argument { uint32_t window, unused; uint64_t offset; };      /* window 0xffffffff: the input block */
struct done { uint32_t calls, out_of_memory; };
struct fault { int32_t signal, code, region, write, system_call, out_of_memory; uint64_t address; int64_t beyond; };

struct region { char *base; uint64_t bytes; };
struct work { void (*entry)(void); uint32_t arguments, dims; void *argument[MOST_ARGUMENTS]; int64_t *dim; };
struct layout { struct region input, dims, *window; struct work *work; uint32_t windows, calls; };

static int command_fd, reply_fd, input_fd, output_fd;
static uint64_t page, guard, address_bytes;
static void (*entries[MOST_ENTRIES])(void);
static struct layout layouts[MOST_LAYOUTS];
static char *message;

static void give(const void *bytes, size_t count)
{
    if (write(reply_fd, bytes, count) != (ssize_t)count) _exit(REFUSED);
}

static void reply(uint32_t kind, const void *payload, uint32_t bytes)
{
    char whole[512];
    struct frame frame = {kind, bytes < sizeof whole - sizeof frame ? bytes : sizeof whole - sizeof frame};
    memcpy(whole, &frame, sizeof frame);
    memcpy(whole + sizeof frame, payload, frame.bytes);
    give(whole, sizeof frame + frame.bytes);
}

static void complain(const char *text) { reply(ERR, text, (uint32_t)strlen(text)); }

static void take(void *into, size_t count)
{
    for (size_t have = 0; have < count;) {
        ssize_t part = read(command_fd, (char *)into + have, count - have);
        if (part > 0) have += (size_t)part;
        else if (part == 0 || errno != EINTR) _exit(0);
    }
}

static int inside(const struct region *region, uint64_t address, uint64_t margin)
{
    uint64_t start = (uint64_t)region->base;
    return region->base && address >= start - margin && address < start + region->bytes + margin;
}

/* What lies at an address; for a guard, how many bytes past its window's end (or, below 0, before its start). */
static int region_of(uint64_t address, int64_t *beyond)
{
    for (int i = 0; i < MOST_LAYOUTS; i++) {
        if (inside(&layouts[i].input, address, 0) || inside(&layouts[i].dims, address, 0)) return IN_INPUT;
        for (uint32_t w = 0; w < layouts[i].windows; w++)
            if (inside(&layouts[i].window[w], address, guard)) {
                const int64_t at = (int64_t)(address - (uint64_t)layouts[i].window[w].base);
                *beyond = at < 0 ? at : at - (int64_t)layouts[i].window[w].bytes;
                return IN_GUARD;
            }
    }
    return ELSEWHERE;
}

/* Whether a sixteenth of the address space can no longer be had. */
static int memory_is_short(void)
{
    void *probe = mmap(NULL, address_bytes / 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED) return 1;
    munmap(probe, address_bytes / 16);
    return 0;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    struct fault fault = {.signal = signal, .code = info->si_code};
    fault.out_of_memory = errno == ENOMEM || memory_is_short();
    if (signal == SIGSYS) fault.system_call = info->si_syscall;
    else fault.address = (uint64_t)info->si_addr;
#if defined(__x86_64__)
    fault.write = signal == SIGSEGV && (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2);
#else
    (void)context;
    fault.write = 1;
#endif
    if (signal == SIGSEGV || signal == SIGBUS) fault.region = region_of(fault.address, &fault.beyond);
    reply(ERR, &fault, sizeof fault);
    _exit(128 + signal);
}

/* Also undoes what a constructor set: any other signal, SIGCONT say, does again what it did at the start. */
static void catch_faults(void)
{
    static char stack[64 << 10];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    for (int number = 1; number < SIGRTMIN; number++) signal(number, SIG_DFL);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
    const int caught[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGXFSZ, SIGXCPU};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaction(caught[i], &action, NULL);
}

/* What a kernel may ask of the system: memory, the time, to print and to end. `always` holds to the end; `loading`
   is what the dynamic loader needs besides. No clone at all, so nothing runs beside the call, and nothing to sleep
   with, so that a process which is not blocked in a read of its next message still works. */
static const int always[] = {
    __NR_read, __NR_write, __NR_writev, __NR_close, __NR_fstat, __NR_lseek, __NR_munmap, __NR_brk, __NR_mremap,
    __NR_rt_sigreturn, __NR_rt_sigprocmask, __NR_exit, __NR_exit_group, __NR_clock_gettime, __NR_gettimeofday,
    __NR_getrandom, __NR_getpid, __NR_gettid, __NR_sched_yield, __NR_restart_syscall,
#ifdef __NR_time
    __NR_time,
#endif
};
static const int loading[] = {
    __NR_openat, __NR_pread64, __NR_rt_sigaction, __NR_sigaltstack, __NR_seccomp, __NR_newfstatat, __NR_readlinkat,
#ifdef __NR_readlink
    __NR_readlink,
#endif
#ifdef __NR_open
    __NR_open,
#endif
};
#define MOST_RULES 160
static struct sock_filter rules[MOST_RULES];
static size_t rule_count;

static void rule(struct sock_filter one) { if (rule_count < MOST_RULES) rules[rule_count++] = one; }

static void allow_each(const int *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)numbers[i], 0, 1));
        rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
}

/* Allow `number` only when the low word of argument `index`, masked, equals `value`. */
static void allow_when(int number, int index, uint32_t mask, uint32_t value)
{
    const uint32_t at = (uint32_t)(offsetof(struct seccomp_data, args) + sizeof(uint64_t) * (size_t)index);
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 5));
    rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at));
    rule((struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
    rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
}

static int restrict_calls(int while_loading)
{
    rule_count = 0;
    rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)));
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_AUDIT_ARCH, 1, 0));
    rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    allow_each(always, sizeof always / sizeof *always);
    if (while_loading) allow_each(loading, sizeof loading / sizeof *loading);
    const uint32_t executable = while_loading ? 0 : PROT_EXEC;
    allow_when(__NR_mmap, 2, executable, 0);
    allow_when(__NR_mprotect, 2, executable, 0);
    allow_when(__NR_tgkill, 0, 0xffffffffu, (uint32_t)getpid());
    allow_when(__NR_madvise, 2, 0xffffffffu, MADV_DONTNEED);
    allow_when(__NR_madvise, 2, 0xffffffffu, MADV_FREE);
    allow_when(__NR_madvise, 2, 0xffffffffu, MADV_HUGEPAGE);
    allow_when(__NR_newfstatat, 3, 0x1000, 0x1000); /* AT_EMPTY_PATH, which is how fstat asks */
    allow_when(__NR_prctl, 0, 0xffffffffu, 0x53564d41); /* PR_SET_VMA, by which malloc names its mappings */
    rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 0, 1));
    rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
    rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
    return rule_count < MOST_RULES ? seccomp_enter(rules, rule_count) : -1;
}

static const char *enter_box(int box)
{
    uint64_t handled = 0;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs";
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!box) return NULL;
    int ruleset = landlock_open(&handled);
    if (ruleset < 0 && box == 1) return "landlock";
    if (ruleset >= 0 && landlock_enter(ruleset) != 0) return "landlock";
    return restrict_calls(1) == 0 ? NULL : "seccomp";
}

static void load(int artifact, const char *names, const char *end)
{
    char path[64], text[400];
    snprintf(path, sizeof path, "/proc/self/fd/%d", artifact);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    catch_faults();
    if (!library) { complain(dlerror()); return; }
    close(artifact);
    for (int i = 0; names < end && i < MOST_ENTRIES; names += strlen(names) + 1, i++) {
        entries[i] = (void (*)(void))dlsym(library, names);
        if (!entries[i]) { snprintf(text, sizeof text, "no symbol %s", names); complain(text); return; }
    }
    reply(READY, NULL, 0);
}

/* A shared mapping between two stretches that nothing may touch; NULL when memory is short. Several pages, as a
   long memset writes its end first. */
static char *map_guarded(int file, uint64_t offset, uint64_t bytes, int protection)
{
    char *whole = mmap(NULL, bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return NULL;
    char *middle = mmap(whole + guard, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, (off_t)offset);
    return middle == MAP_FAILED ? NULL : middle;
}

/* Private pages for at least so many bytes; without a base when memory is short. */
static struct region map_pages(uint64_t bytes)
{
    const uint64_t whole = (bytes + page) & ~(page - 1);
    char *base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? (struct region){NULL, 0} : (struct region){base, whole};
}

static void unmap(struct region *region)
{
    if (region->base) munmap(region->base - guard, region->bytes + 2 * guard);
    region->base = NULL;
}

static void drop(struct layout *layout)
{
    unmap(&layout->input);
    for (uint32_t w = 0; w < layout->windows; w++) unmap(&layout->window[w]);
    if (layout->dims.base) munmap(layout->dims.base, layout->dims.bytes);
    free(layout->window);
    free(layout->work);
    memset(layout, 0, sizeof *layout);
}

static const char *bind_call(struct layout *layout, struct work *work, const char **at, int64_t **dims)
{
    struct call call;
    memcpy(&call, *at, sizeof call);
    *at += sizeof call;
    if (call.entry >= MOST_ENTRIES || call.arguments > MOST_ARGUMENTS - 1) return "bad call";
    *work = (struct work){entries[call.entry], call.arguments, call.dims, {0}, *dims};
    for (uint32_t i = 0; i < call.arguments; i++, *at += sizeof(struct argument)) {
        struct argument argument;
        memcpy(&argument, *at, sizeof argument);
        char *base = argument.window == UINT32_MAX ? layout->input.base : layout->window[argument.window].base;
        work->argument[i] = base + argument.offset;
    }
    memcpy(*dims, *at, call.dims * sizeof(int64_t));
    work->argument[call.arguments] = *dims;
    *at += call.dims * sizeof(int64_t);
    *dims += call.dims;
    return NULL;
}

static const char *prepare(const char *payload, uint32_t bytes)
{
    struct head head;
    memcpy(&head, payload, sizeof head);
    if (head.layout >= MOST_LAYOUTS) return "too many layouts";
    struct layout *layout = &layouts[head.layout];
    drop(layout);
    *layout = (struct layout){.windows = head.windows, .calls = head.calls,
                              .window = calloc(head.windows + 1, sizeof(struct region)),
                              .work = calloc(head.calls + 1, sizeof(struct work)), .dims = map_pages(bytes)};
    if (!layout->window || !layout->work || !layout->dims.base) return "no memory for a layout";
    layout->input = (struct region){map_guarded(input_fd, head.input_offset, head.input_bytes, PROT_READ),
                                    head.input_bytes};
    if (!layout->input.base) return "no memory for the inputs";
    const char *at = payload + sizeof head;
    for (uint32_t w = 0; w < head.windows; w++, at += sizeof(struct window)) {
        struct window window;
        memcpy(&window, at, sizeof window);
        layout->window[w] = (struct region){
            map_guarded(output_fd, window.offset, window.bytes, PROT_READ | PROT_WRITE), window.bytes};
        if (!layout->window[w].base) return "no memory for the outputs";
    }
    int64_t *dims = (int64_t *)layout->dims.base;
    const char *problem = NULL;
    for (uint32_t i = 0; i < head.calls && !problem; i++) problem = bind_call(layout, &layout->work[i], &at, &dims);
    return mprotect(layout->dims.base, layout->dims.bytes, PROT_READ) == 0 ? problem : "no memory for the dims";
}

static void invoke(const struct work *work)
{
    void *const *a = work->argument;
#define P void *
#define CALL(types, ...) ((void (*) types)work->entry)(__VA_ARGS__); break
    switch (work->arguments + 1) {
    case 2: CALL((P, P), a[0], a[1]);
    case 3: CALL((P, P, P), a[0], a[1], a[2]);
    case 4: CALL((P, P, P, P), a[0], a[1], a[2], a[3]);
    case 5: CALL((P, P, P, P, P), a[0], a[1], a[2], a[3], a[4]);
    case 6: CALL((P, P, P, P, P, P), a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7: CALL((P, P, P, P, P, P, P), a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8: CALL((P, P, P, P, P, P, P, P), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    default: CALL((P, P, P, P, P, P, P, P, P, P, P, P, P, P, P, P), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
                  a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
    }
}

static __attribute__((noinline)) void invoke_all(const struct layout *layout)
{
    for (uint32_t i = 0; i < layout->calls; i++) invoke(&layout->work[i]);
}

/* The system starts a stack at a random multiple of 16 bytes, and an array that a kernel keeps there is then now and
   then at odds with its vectors or its inputs: the same artifact ran 1.4 times slower in one process in eight. So
   every call starts at the same distance from a page's end, in every process. */
static void invoke_at_page(const struct layout *layout)
{
    char *volatile pad = __builtin_alloca((uintptr_t)__builtin_frame_address(0) & (page - 1));
    (void)pad;
    invoke_all(layout);
}

static void go(uint32_t index)
{
    if (index >= MOST_LAYOUTS || !layouts[index].work) { complain("no such layout"); return; }
    const struct layout *layout = &layouts[index];
    fesetenv(FE_DFL_ENV);
    errno = 0;
    invoke_at_page(layout);
    struct done done = {layout->calls, errno == ENOMEM};
    reply(DONE, &done, sizeof done);
}

static void answer(const struct frame *frame, int artifact, int box)
{
    uint32_t index = 0;
    if (frame->bytes >= sizeof index) memcpy(&index, message, sizeof index);
    if (frame->kind == GO) { go(index); return; }
    if (frame->kind == LOAD) {
        load(artifact, message + sizeof index, message + frame->bytes);
        if (box && restrict_calls(0) != 0) _exit(REFUSED);
        return;
    }
    const char *problem = NULL;
    if (frame->kind == PREPARE) problem = prepare(message, frame->bytes);
    else if (frame->kind == DROP && index < MOST_LAYOUTS) drop(&layouts[index]);
    if (problem) complain(problem);
    else reply(READY, NULL, 0);
}

/* Close every other descriptor from 3 on: who started this needs more of them than it does. */
static void keep_only(const int *kept, int count)
{
    int last = 2;
    for (int i = 0; i < count; i++) last = kept[i] > last ? kept[i] : last;
    for (int open = 3, i; open < last; open++) {
        for (i = 0; i < count && kept[i] != open; i++) continue;
        if (i == count) close(open);
    }
    syscall(__NR_close_range, last + 1, ~0u, 0);
}

int main(int count, char **argument)
{
    if (count != 11) return REFUSED;
    int number[6];
    for (int i = 0; i < 6; i++) number[i] = atoi(argument[i + 1]);
    keep_only(number, 5);
    command_fd = number[0], reply_fd = number[1], input_fd = number[3], output_fd = number[4];
    page = (uint64_t)sysconf(_SC_PAGESIZE);
    guard = GUARD_PAGES * page;
    message = malloc(MOST_BYTES);
    address_bytes = strtoull(argument[8], NULL, 10);
    follow_parent();
    pin(atoi(argument[7]));
    catch_faults();
    dlopen("libmvec.so.1", RTLD_NOW | RTLD_GLOBAL); /* vector math of fast-math baselines; no file opens later */
    if (!message || limit(RLIMIT_AS, address_bytes) || limit(RLIMIT_CPU, strtoull(argument[9], NULL, 10))
        || limit(RLIMIT_FSIZE, strtoull(argument[10], NULL, 10)) || limit(RLIMIT_CORE, 0) || limit(RLIMIT_NOFILE, 64)
        || limit(RLIMIT_NPROC, 0)) { complain("refused: rlimit"); return REFUSED; }
    const char *refused = enter_box(number[5]);
    if (refused) { char text[64]; snprintf(text, sizeof text, "refused: %s", refused); complain(text); return REFUSED; }
    reply(READY, NULL, 0);
    for (struct frame frame;;) {
        take(&frame, sizeof frame);
        if (frame.bytes > MOST_BYTES) return REFUSED;
        take(message, frame.bytes);
        answer(&frame, number[2], number[5]);
    }
}
