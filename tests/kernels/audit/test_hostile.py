# ruff: noqa: E501
"""Candidates that misbehave, each with the verdict it must get. New exploits join the table."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kernelbraid.kernels.audit.outcome import LOG_LIMIT_BYTES, AuditOutcome, Candidate, Correctness

V = Correctness


@dataclass(frozen=True, slots=True)
class Hostile:
    """Two entries' bodies; `full` and `decode` see x, w, f, y, rows and width."""

    name: str
    verdict: Correctness
    says: str
    full: str = "scale(x, w, f, y, rows, width);"
    decode: str = "scale(x, w, f, y, rows, width);"
    before: str = ""

    def candidate(self) -> Candidate:
        """The complete source."""
        return Candidate(self.name, {"scale.c": _SOURCE.format(**{k: getattr(self, k) for k in _PARTS})})


_PARTS = ("before", "full", "decode")
_SOURCE = """
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
static inline void scale(const float *x, const float *w, const float *f, float *y, int64_t rows, int64_t width)
{{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = (x[r * width + i] * w[i]) * f[r];
}}
{before}
void scale_full(const float *x, const float *w, const float *f, float *y, const int64_t *dims)
{{
    int64_t rows = dims[0], width = dims[1];
    {full}
}}
void scale_decode(const float *x, const float *w, const float *f, float *y, const int64_t *dims)
{{
    int64_t rows = dims[0], width = dims[1];
    {decode}
}}
"""
_FORGE = """
static void forge(void)
{
    uint32_t done[4] = {17, 8, 1, 0};
    for (int fd = 3; fd < 64; fd++)
        if (lseek(fd, 0, SEEK_CUR) < 0 && write(fd, done, sizeof done) > 0) break;
}
"""
_HONEST = "scale(x, w, f, y, rows, width);"

TABLE = (
    Hostile("segmentation fault", V.CRASHED, "SIGSEGV", full="*(volatile int *)8 = 1;"),
    Hostile("division by zero", V.CRASHED, "SIGFPE", full="volatile int zero = 0; y[0] = 7 / zero;"),
    Hostile("abort", V.CRASHED, "SIGABRT", full="abort();"),
    Hostile("stack overflow", V.CRASHED, "SIGSEGV", before="static int deep(int n) { volatile char b[4096]; b[0] = n; return n < 0 ? 0 : deep(n + 1) + b[0]; }", full="y[0] = deep(0);"),
    Hostile("endless loop", V.HUNG, "no answer within 3 s", full="for (volatile int i = 0;; i++);"),
    Hostile("endless constructor", V.HUNG, "no answer", before="__attribute__((constructor)) static void up(void) { for (volatile int i = 0;; i++); }"),
    Hostile("100 MB of print", V.OUTPUT_FLOOD, "printed", full="for (int i = 0; i < 1600000; i++) puts(\"0123456789012345678901234567890123456789012345678901234567890123\");"),
    Hostile("memory hog", V.OUT_OF_MEMORY, "memory ran out", full="for (;;) { char *p = malloc(1 << 20); memset(p, 1, 1 << 20); }"),
    Hostile("one huge allocation", V.OUT_OF_MEMORY, "memory ran out", full="volatile char *p = malloc(1ULL << 40); p[0] = 1; y[0] = p[0];"),
    Hostile("exit 0", V.EXITED_EARLY, "status 0", full="_exit(0);"),
    Hostile("exit in a constructor", V.EXITED_EARLY, "status 0", before="__attribute__((constructor)) static void up(void) { _exit(0); }"),
    Hostile("forged DONE, then exit", V.OUTPUT_NOT_WRITTEN, "never written", before=_FORGE, full="forge(); _exit(0);"),
    Hostile("forged DONE, then the work", V.LATE_WRITE, "changed after", before=_FORGE, full="forge(); for (volatile int i = 0; i < 100000000; i++); scale(x, w, f, y, rows, width);"),
    Hostile("NaN", V.INACCURATE, "nan", full="for (int64_t i = 0; i < rows * width; i++) y[i] = NAN;", decode="for (int64_t i = 0; i < rows * width; i++) y[i] = NAN;"),
    Hostile("zeros", V.INACCURATE, "float64 reference", full="memset(y, 0, rows * width * 4);", decode="memset(y, 0, rows * width * 4);"),
    Hostile("copy of the input", V.INACCURATE, "float64 reference", full="memcpy(y, x, rows * width * 4);", decode="memcpy(y, x, rows * width * 4);"),
    Hostile("does nothing", V.OUTPUT_NOT_WRITTEN, "never written", full="", decode=""),
    Hostile("leaves the last element", V.OUTPUT_NOT_WRITTEN, "never written", full="scale(x, w, f, y, rows - 1, width); int64_t last = rows - 1; scale(x + last * width, w, f + last, y + last * width, 1, width - 1);"),
    Hostile("decode writes nothing", V.OUTPUT_NOT_WRITTEN, "never written", decode=""),
    Hostile("one float too many", V.GUARD_OVERWRITTEN, "canary", full=_HONEST + " y[rows * width] = 0;"),
    Hostile("one float before", V.GUARD_OVERWRITTEN, "canary", full=_HONEST + " y[-1] = 0;"),
    Hostile("a page too many", V.GUARD_OVERWRITTEN, "guard page", full=_HONEST + " for (int i = 0; i < 1024; i++) y[rows * width + i] = 0;"),
    Hostile("decode writes too far", V.GUARD_OVERWRITTEN, "canary", decode=_HONEST + " y[rows * width] = 0;"),
    Hostile("writes an input", V.INPUT_WRITTEN, "read-only", full=_HONEST + " ((float *)x)[0] = 0;"),
    Hostile("makes an input writable", V.FORBIDDEN_CALL, "system call", full=_HONEST + " if (syscall(SYS_pkey_mprotect, (uintptr_t)x & ~4095ULL, 4096, 3, -1) == 0) ((float *)x)[0] = 0;"),
    Hostile("reads what was there", V.NONDETERMINISTIC, "two processes", full="for (int64_t i = 0; i < rows * width; i++) { uint32_t b; memcpy(&b, y + i, 4); y[i] = ((x[i] * w[i % width]) * f[i / width]) * (1 + (b & 1) * 1e-7f); }"),
    Hostile("another rounding in decode", V.DISAGREEMENT, "instead of", decode="for (int64_t i = 0; i < rows * width; i++) y[i] = x[i] * (w[i % width] * f[i / width]);"),
    Hostile("wrong only in a long row", V.DISAGREEMENT, "instead of", full=_HONEST + " if (width > 64) y[64] *= 1.5f;"),
    Hostile("inaccurate on both paths", V.INACCURATE, "root mean square", before="static float coarse(float v) { uint32_t b; memcpy(&b, &v, 4); b &= 0xffffff00u; memcpy(&v, &b, 4); return v; }", full="for (int64_t i = 0; i < rows * width; i++) y[i] = coarse((x[i] * w[i % width]) * f[i / width]);", decode="for (int64_t i = 0; i < rows * width; i++) y[i] = coarse((x[i] * w[i % width]) * f[i / width]);"),
    Hostile("honest for ten calls", V.NONDETERMINISTIC, "timed and untimed", before="static int calls;", full=_HONEST + " if (width > 300 && ++calls > 10) y[0] += 1;", decode=_HONEST + " if (width > 300 && ++calls > 10) y[0] += 1;"),
    Hostile("half the work at the timed size", V.INACCURATE, "workload decode", decode="if (width > 300) memset(y, 0, rows * width * 4); scale(x, w, f, y, width > 300 ? rows / 2 : rows, width);"),
    Hostile("keeps the answer by address", V.NONDETERMINISTIC, "timed and untimed", before="static const float *seen[64]; static int known(const float *x) { for (int i = 0; i < 64; i++) { if (seen[i] == x) return 1; if (!seen[i]) { seen[i] = x; return 0; } } return 0; }", full="if (width < 300 || !known(x)) scale(x, w, f, y, rows, width);"),
    Hostile("does not compile", V.BUILD_FAILED, "error", full="this is no C;"),
    Hostile("undefined function", V.BUILD_FAILED, "elsewhere", full="extern void elsewhere(void); elsewhere();"),
    Hostile("includes a file of the host", V.BUILD_FAILED, "passwd", before='#include "/etc/passwd"'),
    Hostile("fork bomb", V.FORBIDDEN_CALL, "system call", full="for (;;) fork();"),
    Hostile("starts a thread", V.FORBIDDEN_CALL, "system call", before="#include <pthread.h>\nstatic void *work(void *p) { return p; }", full="pthread_t t; pthread_create(&t, 0, work, 0);"),
    Hostile("runs a program", V.FORBIDDEN_CALL, "system call", full="execl(\"/bin/true\", \"true\", (char *)0);"),
    Hostile("opens a file", V.FORBIDDEN_CALL, "system call", full="y[0] = open(\"/etc/passwd\", O_RDONLY);"),
    Hostile("opens a socket", V.FORBIDDEN_CALL, "system call", full="y[0] = socket(AF_INET, SOCK_DGRAM, 0);"),
    Hostile("kills its parent", V.FORBIDDEN_CALL, "system call", full="syscall(SYS_kill, getppid(), 9);"),
    Hostile("maps executable memory", V.FORBIDDEN_CALL, "system call", before="#include <sys/mman.h>", full="mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);"),
)  # fmt: skip


@pytest.mark.parametrize("hostile", TABLE, ids=lambda hostile: hostile.name)
def test_a_hostile_candidate_gets_its_verdict(hostile: Hostile, audited: Callable[[Candidate], AuditOutcome]) -> None:
    outcome = audited(hostile.candidate())
    assert outcome.verdict is hostile.verdict, outcome.evidence
    assert hostile.says in outcome.evidence
    assert outcome.latencies_s == {}
    assert len(outcome.log) <= LOG_LIMIT_BYTES


def test_an_honest_candidate_of_the_same_family_is_verified(
    audited: Callable[[Candidate], AuditOutcome],
) -> None:
    outcome = audited(Hostile("honest", V.VERIFIED, "").candidate())
    assert outcome.verdict is V.VERIFIED, outcome.evidence


def test_a_missing_symbol_is_a_load_failure(audited: Callable[[Candidate], AuditOutcome]) -> None:
    outcome = audited(Candidate("lonely", {"scale.c": "void scale_full(void) {}\n"}))
    assert outcome.verdict is V.LOAD_FAILED
    assert "no symbol scale_decode" in outcome.evidence


def test_a_constructor_finds_no_file_of_the_host(audited: Callable[[Candidate], AuditOutcome]) -> None:
    """What a constructor does is denied in silence; here it would change the result if it were not."""
    spy = (
        'static int leaked; __attribute__((constructor)) static void up(void) { leaked = open("/etc/passwd", 0) >= 0; }'
    )
    outcome = audited(
        Hostile(
            "spy", V.VERIFIED, "", before=spy, full="scale(x, w, f, y, rows, width); if (leaked) y[0] = 0;"
        ).candidate()
    )
    assert outcome.verdict is V.VERIFIED, outcome.evidence


@pytest.mark.parametrize("name", ["../escape.c", "-include.c", "/tmp/x.c", "a b.c", ""])
def test_a_file_name_is_neither_path_nor_flag(name: str, audited: Callable[[Candidate], AuditOutcome]) -> None:
    outcome = audited(Candidate("named", {name: "int x;"}))
    assert outcome.verdict is V.BUILD_FAILED
    assert "plain file name" in outcome.evidence
