/* The auditor's clock, loaded into the auditor: one message out, one reply in, and the time between.
   In C because an interpreter would add its own lock's waiting to every sample, and its own work to every message. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 64, DRAWS = 3, LARGEST_STRETCH = 8 };

struct span { const char *start; uint64_t bytes; };

/* An input, and another one whose parts are swapped into it where `finite` allows (NULL: everywhere). */
struct swapped { char *here, *there; const uint8_t *finite; uint64_t elements, width, element_bytes; };

/* Who is visited and with what: the message, how its answer must begin and how long it must be. */
struct errand {
    int32_t command, reply, process, timeout_ms;
    const void *message, *due;
    uint64_t message_bytes, due_bytes, answer_bytes;
    const struct swapped *inputs;
    uint64_t input_count;
    const struct span *spans;
    uint64_t span_count;
};

struct elapsed { int64_t wall_ns, used_ns; };

enum { ANSWER_ROOM = 512 };

/* One stop of a tour: whom to visit, so many messages, each with other inputs, and what came of it. With `near` all that
   they are about is read before. It ends at the first answer that is not the due one, and once the process is stopped:
   after the last message with `freeze`, else after one that took less than `freeze_below_ns`. With `waited_ns` it is made
   once more, with as many draws and room for as many times, where the process was off its core for so long during every
   message. `answered_ns`, the processor time that the process had used at its last answer, is kept up to date;
   `between_ns` is what it used from there to the stop's first message. */
struct stop {
    const struct errand *errand;
    const double *draws;
    int64_t *answered_ns;
    struct elapsed *elapsed;
    uint64_t count;
    int32_t near, freeze;
    int64_t freeze_below_ns, waited_ns, between_ns;
    uint64_t sent;
    int64_t frozen, received;
    char answer[ANSWER_ROOM];
};

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

/* Send, wait at most timeout_ms, receive. `process` is the receiver, or 0; it is stopped at once after its reply when
   that came in less than `freeze_below_ns`. `elapsed` is the time between, and what of it the receiver spent on a
   processor. Returns the bytes received, 0 at end of file, or a negative errno (-ETIMEDOUT: nothing came). */
int64_t round_trip(int command, int reply, const void *message, uint64_t message_bytes, void *answer,
                   uint64_t answer_bytes, int timeout_ms, int process, int64_t freeze_below_ns,
                   struct elapsed *elapsed)
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
    elapsed->wall_ns = now_ns() - start;
    if (elapsed->wall_ns < freeze_below_ns && process > 0) kill(process, SIGSTOP);
    elapsed->used_ns = used_ns(process) - used_before_ns;
    return received < 0 ? -errno : received;
}

/* Swap the elements where `finite` is 1, without a branch: a stretch is then swapped in vectors. */
#define SWAP_FINITE(type)                                                                                              \
    static inline __attribute__((always_inline)) void swap_finite_##type(                                              \
        type *restrict here, type *restrict there, const uint8_t *restrict finite, uint64_t start, uint64_t end,       \
        uint64_t step)                                                                                                 \
    {                                                                                                                  \
        for (uint64_t i = start; i < end; i += step) {                                                                 \
            const type change = (type)((here[i] ^ there[i]) & (type)-finite[i]);                                       \
            here[i] ^= change, there[i] ^= change;                                                                     \
        }                                                                                                              \
    }
SWAP_FINITE(uint16_t)
SWAP_FINITE(uint32_t)
#define SWAP(type) swap_finite_##type((type *)input->here, (type *)input->there, input->finite, start, end, step)

static inline __attribute__((always_inline)) void swap_each(const struct swapped *input, uint64_t start, uint64_t end,
                                                            uint64_t step)
{
    const uint64_t size = input->element_bytes;
    if (input->finite && size == sizeof(uint32_t)) { SWAP(uint32_t); return; }
    if (input->finite && size == sizeof(uint16_t)) { SWAP(uint16_t); return; }
    for (uint64_t i = start; i < end; i += step) {
        if (input->finite && !input->finite[i]) continue;
        char kept[8];
        memcpy(kept, input->here + i * size, size);
        memcpy(input->here + i * size, input->there + i * size, size);
        memcpy(input->there + i * size, kept, size);
    }
}

static void swap_bytes(char *one, char *other, uint64_t count)
{
    char kept[4096];
    for (uint64_t done = 0; done < count; done += sizeof kept) {
        const uint64_t part = count - done < sizeof kept ? count - done : sizeof kept;
        memcpy(kept, one + done, part);
        memcpy(one + done, other + done, part);
        memcpy(other + done, kept, part);
    }
}

/* Change a stretch of every input and an element of each of its rows. `draws` has three numbers in [0, 1) for each:
   where the stretch begins, how long it is, which column. */
void change_inputs(const struct swapped *inputs, uint64_t count, const double *draws)
{
    for (const struct swapped *input = inputs; input < inputs + count; input++, draws += DRAWS) {
        const uint64_t length = 1 + (uint64_t)(draws[1] * (double)input->elements / LARGEST_STRETCH);
        const uint64_t start = (uint64_t)(draws[0] * (double)(input->elements - length + 1));
        if (input->finite) swap_each(input, start, start + length, 1);
        else
            swap_bytes(input->here + start * input->element_bytes, input->there + start * input->element_bytes,
                       length * input->element_bytes);
        swap_each(input, (uint64_t)(draws[2] * (double)input->width), input->elements, input->width);
    }
}

/* Whether the last answer is a whole one of the kind that is due. */
static int is_due(const struct stop *stop)
{
    const struct errand *errand = stop->errand;
    return stop->received == (int64_t)errand->answer_bytes && memcmp(stop->answer, errand->due, errand->due_bytes) == 0;
}

/* Up to `until` messages of a stop. `received` is as round_trip for the last, -EBADMSG when something lay in the reply
   pipe before a message. */
static void send_some(struct stop *stop, uint64_t until)
{
    const struct errand *errand = stop->errand;
    while (stop->sent < until && !stop->frozen) {
        change_inputs(errand->inputs, errand->input_count, stop->draws + DRAWS * errand->input_count * stop->sent);
        if (stop->near && stop->sent == 0) bring_near(errand->spans, errand->span_count);
        struct pollfd leftover = {errand->reply, POLLIN, 0};
        if (poll(&leftover, 1, 0) == 1 && leftover.revents == POLLIN) { stop->received = -EBADMSG; return; }
        const int64_t used_before_ns = used_ns(errand->process);
        if (stop->sent == 0) stop->between_ns = used_before_ns ? used_before_ns - *stop->answered_ns : 0;
        struct elapsed *each = &stop->elapsed[stop->sent++];
        const int64_t below_ns = stop->freeze && stop->sent == stop->count ? INT64_MAX : stop->freeze_below_ns;
        stop->received = round_trip(errand->command, errand->reply, errand->message, errand->message_bytes,
                                    stop->answer, ANSWER_ROOM, errand->timeout_ms, errand->process, below_ns, each);
        if (!is_due(stop)) return;
        stop->frozen = each->wall_ns < below_ns;
        const int64_t used_after_ns = used_ns(errand->process);
        if (used_after_ns) *stop->answered_ns = used_after_ns;
    }
}

/* Whether the process was off its core for that long during every message. */
static int disturbed(const struct stop *stop)
{
    for (uint64_t i = 0; i < stop->sent; i++)
        if (stop->elapsed[i].wall_ns - stop->elapsed[i].used_ns < stop->waited_ns) return 0;
    return 1;
}

/* Stop after stop, without the interpreter between them. It ends after the first one that froze its process or got
   another answer than the due one. Returns how many were made. */
uint64_t tour(struct stop *const *stops, uint64_t count)
{
    uint64_t made = 0;
    while (made < count) {
        struct stop *stop = stops[made++];
        send_some(stop, stop->count);
        if (is_due(stop) && !stop->frozen && stop->waited_ns && disturbed(stop)) send_some(stop, 2 * stop->count);
        if (!is_due(stop) || stop->frozen) break;
    }
    return made;
}
