/* The auditor's clock, loaded into the auditor: one message out, one reply in, and the time between.
   In C because an interpreter would add its own lock's waiting to every sample. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 64 };

struct span { const char *start; uint64_t bytes; };

static int64_t read_ns(clockid_t clock)
{
    struct timespec now;
    return clock_gettime(clock, &now) == 0 ? now.tv_sec * 1000000000LL + now.tv_nsec : 0;
}

static int64_t now_ns(void) { return read_ns(CLOCK_MONOTONIC); }

/* The kernel's account of the processor time that another process has used. */
static int64_t used_ns(int process)
{
    return process > 0 ? read_ns((clockid_t)((~(unsigned)process << 3) | 2)) : 0;
}

/* Read memory that the receiver is about to use, so that its time does not depend on what ran on this core before. */
void bring_near(const struct span *span, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        for (const volatile char *at = span[i].start, *end = at + span[i].bytes; at < end; at += LINE_BYTES) (void)*at;
}

/* Send, wait at most timeout_ms, receive. `process` is the receiver, or 0; with `freeze` it is stopped at once after
   its reply. elapsed_ns[0] is the time between, elapsed_ns[1] what of it the receiver spent on a processor.
   Returns the bytes received, 0 at end of file, or a negative errno (-ETIMEDOUT: nothing came). */
int64_t round_trip(int command, int reply, const void *message, uint64_t message_bytes, void *answer,
                   uint64_t answer_bytes, int timeout_ms, int process, int freeze, int64_t *elapsed_ns)
{
    struct pollfd waiting = {reply, POLLIN, 0};
    int64_t used_before_ns = used_ns(process), start = now_ns(), left_ms = timeout_ms;
    if (write(command, message, message_bytes) != (ssize_t)message_bytes) return errno == EPIPE ? 0 : -errno;
    int ready;
    while ((ready = poll(&waiting, 1, (int)left_ms)) < 0 && errno == EINTR) {
        left_ms = timeout_ms - (now_ns() - start) / 1000000;
        if (left_ms < 0) left_ms = 0;
    }
    if (ready == 0) return -ETIMEDOUT;
    if (ready < 0) return -errno;
    ssize_t received = read(reply, answer, answer_bytes);
    elapsed_ns[0] = now_ns() - start;
    if (freeze && process > 0) kill(process, SIGSTOP);
    elapsed_ns[1] = used_ns(process) - used_before_ns;
    return received < 0 ? -errno : received;
}
