/* ceilings: how fast one core of this machine can be at best, as three numbers on a line:

     bytes a second moved to and from the first-level cache, floating-point operations a second, seconds a call

   Each is the best of many short trials, so that a neighbour on the core costs accuracy only while it never pauses.
   Nothing here is tuned to one processor: wide vectors, many of them in flight, and the compiler's own code. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { LANES = 16, VECTORS = 64, CHAINS = 12, TRIALS = 3000, PASSES = 64 };
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

vector a[VECTORS], b[VECTORS], c[VECTORS]; /* not static, or the compiler would know them to be zero */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static __attribute__((noinline)) double read_all(void)
{
    vector sums[8] = {{0}};
    for (int pass = 0; pass < PASSES; pass++) {
        for (int i = 0; i < VECTORS; i += 8)
            for (int k = 0; k < 8; k++) sums[k] += a[i + k];
        __asm__ volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
    }
    for (int k = 1; k < 8; k++) sums[0] += sums[k];
    c[0] = sums[0];
    return (double)PASSES * sizeof a;
}

static __attribute__((noinline)) double add_all(void)
{
    for (int pass = 0; pass < PASSES; pass++) {
        for (int i = 0; i < VECTORS; i++) c[i] = a[i] + b[i];
        __asm__ volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
    }
    return (double)PASSES * 3 * sizeof a;
}

static __attribute__((noinline)) double multiply_and_add(void)
{
    vector sums[CHAINS];
    for (int k = 0; k < CHAINS; k++) sums[k] = a[k];
    const vector factor = b[0], term = b[1];
    for (int pass = 0; pass < 16 * PASSES; pass++)
        for (int k = 0; k < CHAINS; k++) sums[k] = sums[k] * factor + term;
    for (int k = 1; k < CHAINS; k++) sums[0] += sums[k];
    c[0] = sums[0];
    return 16.0 * PASSES * CHAINS * LANES * 2;
}

static void nothing(void) {}

static __attribute__((noinline)) double call_all(void)
{
    void (*volatile entry)(void) = nothing;
    for (int i = 0; i < 1000; i++) entry();
    return 1000.0;
}

static double best_rate(double (*work)(void))
{
    double best = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        double start = now_s(), done = work(), rate = done / (now_s() - start + 1e-12);
        if (rate > best) best = rate;
    }
    return best;
}

int main(void)
{
    double read = best_rate(read_all), added = best_rate(add_all);
    printf("%.6e %.6e %.6e\n", read > added ? read : added, best_rate(multiply_and_add), 1 / best_rate(call_all));
    return 0;
}
