"""What sizes a source names: every way of writing a constant, and nothing that is no constant."""

import operator
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.kernels.audit.literals import LEAST, MOST, literals
from kernelbraid.kernels.operators.operator import load_operator

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": lambda a, b: a << (b % 20),
    "|": operator.or_,
}
LEAVES = st.integers(1, 5000).map(lambda value: (str(value), value))


def joined(children: st.SearchStrategy[tuple[str, int]]) -> st.SearchStrategy[tuple[str, int]]:
    """A bracketed expression and its value, of two others."""

    def build(left: tuple[str, int], symbol: str, right: tuple[str, int]) -> tuple[str, int]:
        if symbol == "<<":
            return f"({left[0]} << {right[1] % 20})", left[1] << right[1] % 20
        return f"({left[0]} {symbol} {right[0]})", OPERATIONS[symbol](left[1], right[1])

    return st.builds(build, children, st.sampled_from(list(OPERATIONS)), children)


EXPRESSIONS = st.recursive(LEAVES, joined, max_leaves=5)


@given(EXPRESSIONS, st.sampled_from(["a.c", "kernel.py"]))
def test_an_expression_of_constants_counts_by_its_value(expression: tuple[str, int], name: str) -> None:
    text, value = expression
    source = f"if (rows > {text}) {{ slow(); }}" if name.endswith(".c") else f"if rows > {text}:\n    slow()\n"
    if LEAST <= abs(value) <= MOST:
        assert abs(value) in literals({name: source})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("if (n >= 16384) f();", 16384),
        ("if (n >= 0x4000u) f();", 16384),
        ("if (n >= 040000) f();", 16384),
        ("if (n >= 16'384) f();", 16384),
        ("if (n >= 16384.0f) f();", 16384),
        ("if (n >= 1.6384e4) f();", 16384),
        ("if (n >= 1 << 14) f();", 16384),
        ("if (n >> 14) f();", 16384),
        ("if (n >= (int64_t)64 * 256) f();", 16384),
        ("if (n * 2 >= 32768) f();", 16384),
        ("if (n / 64 > 256) f();", 16384),
        ("if ((n + 63) / 64 > 256) f();", 16384),
        ("if (n > 65536 / sizeof(float)) f();", 16384),
        ("if (n > 65536 / (int)sizeof(int32_t)) f();", 16384),
        ("if (n > 131072 / sizeof(const float *)) f();", 16384),
        ("if (n >= 10000 + 6384) f();", 16384),
        ("#define BIG 16384\nif (n >= BIG) f();", 16384),
        ("#define K 1024\n#define BIG (16 * K)\nif (n >= BIG) f();", 16384),
        ("#define BIG \\\n  (1 << 14)\n", 16384),
        ("static const int64_t BIG = 1 << 14;", 16384),
        ("enum { SMALL = 4, BIG = SMALL << 12 };", 16384),
        ("constexpr int BIG = 128 * 128;", 16384),
        ("f<<<16384, 1>>>(x);", 16384),
        ("return n < 5 ? 1 : 16384;", 16384),
        ('strtol("16384", 0, 10)', 16384),
        ("if (n > 16384.5) f();", 16384),
        ("enum { HALF = 32769 / 2 };\nif (n > HALF) f();", 16384),
        ('const char *s = "/*"; if (n > 16384) f();', 16384),
        ('puts("//"); if (n > 16384) f();', 16384),
        ('/* "*/ if (n > 16384) f();', 16384),
    ],
)
def test_c_names_a_size(text: str, size: int) -> None:
    assert size in literals({"a.c": text})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("if n >= 16384: f()", 16384),
        ("if n >= 1 << 14: f()", 16384),
        ("if n >= 2**14: f()", 16384),
        ("if n >= 16_384: f()", 16384),
        ("if n >= 1.6384e4: f()", 16384),
        ("if n >> 14: f()", 16384),
        ("MANY, FEW = 64 * 256, 3\nif n >= MANY: f()", 16384),
        ("MANY: tl.constexpr = tl.constexpr(16384)", 16384),
        ("BLOCK = 64\nif triton.cdiv(n, BLOCK) > 256: f()", 16384),
        ("BLOCK = 64\nLARGE = BLOCK * BLOCK * 4\n", 16384),
        ("if n * k > 4 * 4096: f()", 16384),
        ("if n * 2 >= 32768: f()", 16384),
        ("if n >= int('16384'): f()", 16384),
        ("def f(n, many=16384): ...", 16384),
        ("f(n) if n in (3, 16384) else g(n)", 16384),
        ("(many := 16384)", 16384),
        ("def f(n, k: tl.constexpr = 128):\n    if n > k * k: g()", 16384),
        ("def f(n, *, k=128):\n    if n > k * k: g()", 16384),
        ("f(n, K=128)\ndef f(n, K):\n    if n > K * K: g()", 16384),
        ("if n > len('abcdefg') * 1000: f()", 7000),
        ("if -16384 > -n: f()", 16384),
    ],
)
def test_python_names_a_size(text: str, size: int) -> None:
    assert size in literals({"kernel.py": text})


def test_c_is_read_whatever_its_files_are_called() -> None:
    """What it includes may have any name, and a name that one file defines counts in the others."""
    assert 16384 in literals({"a.c": '#include "n.py"', "n.py": "if (n > 16384) f();"})
    assert 16384 in literals({"a.c": '#include "n.py"', "n.py": "# define MANY 16384"})
    assert 16384 in literals({"a.c": "if (n > K * K) f();", "k.h": "#define K 128"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", "// 16384\n/* 16384\n */ int x;"),
        ("a.c", 'puts("from 16384 on");'),
        ("a.c", "int of16384(void);"),
        ("kernel.py", '"""From 16384 on."""  # 16384\nx = True\n'),
        ("kernel.py", "of16384 = 'mov.b32 one, 16384;'"),
        ("kernel.py", "this does not parse 16384 ("),
        ("a.c", "int one = 1, none = 0;"),
        ("a.c", "x = 99999999999999999999999999;"),
    ],
)
def test_what_is_no_size_is_not_named(name: str, text: str) -> None:
    assert not literals({name: text}) & {16384, 1, 0}
    assert all(LEAST <= value <= MOST for value in literals({name: text}))


@given(st.text(max_size=200), st.sampled_from(["a.c", "kernel.py"]))
def test_any_text_is_read_without_complaint(text: str, name: str) -> None:
    assert all(LEAST <= value <= MOST for value in literals({name: text}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", "(" * 200_000),
        ("a.c", "-" * 200_000 + "5"),
        ("a.c", "1" + " + 1" * 100_000),
        ("a.c", "/*" * 200_000),
        ("a.c", "'" * 100_000),
        ("a.c", "9" * 200_000),
        ("a.c", "a[" * 100_000 + "5"),
        ("kernel.py", "x = 1" + " + 1" * 20_000),
        ("kernel.py", "x = " + "-" * 3_000 + "1"),
        ("kernel.py", "x = " + "(" * 150 + "1" + ")" * 150),
        ("kernel.py", "if a < " + " < ".join(map(str, range(20_000))) + ": pass"),
        ("kernel.py", "x = 2" + " ** 62" * 50),
    ],
)
def test_a_source_that_means_to_keep_its_reader_busy_does_not(name: str, text: str) -> None:
    started = time.process_time()
    literals({name: text})
    assert time.process_time() - started < 5


def test_a_number_after_all_that_is_found_too() -> None:
    assert 16384 in literals({"a.c": "(" * 200_000 + "if (n > 16384)"})


def test_shipped_sources_name_the_sizes_that_they_dispatch_on() -> None:
    router = load_operator("topk_softmax", "triton").best_sources()
    assert {8192, 131072} <= literals(router)
    assert 64 in literals(load_operator("attention").best_sources())
