# ruff: noqa: E501
"""The source policy: honest kernels pass, each forbidden thing is found wherever it stands, no text breaks it."""

import ast
import importlib.util
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.kernels.audit.cuda.policy import Finding, forbidden
from kernelbraid.kernels.audit.outcome import Correctness
from kernelbraid.kernels.operators.operator import load_operator

V = Correctness
HONEST = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "honest").glob("*.py"))}
OPERATORS = Path(__file__).parents[4] / "kernels" / "operators"
ROOTS = sorted(OPERATORS.glob("*/triton/*/kernel.py"))

HEAD = """
import math
import torch
import triton
import triton.language as tl

@triton.jit
def _kernel(x, y, n, scale, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + k, mask=k < n)
    {device}
    tl.store(y + k, v * scale, mask=k < n)

{top}

def entry(x, weight, y):
    n = x.numel()
    {host}
    _kernel[(triton.cdiv(n, 64),)](x, y, n, 1.0, BLOCK=64)
"""


def source(host: str = "", device: str = "", top: str = "") -> str:
    """A small kernel.py with something put into it."""
    return HEAD.format(host=host or "pass", device=device or "pass", top=top)


def found(text: str, **options: object) -> Finding | None:
    """What the policy says of one file."""
    return forbidden({"kernel.py": text}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes(name: str) -> None:
    assert found(HONEST[name]) is None


@pytest.mark.parametrize("path", ROOTS, ids=lambda path: "-".join(path.relative_to(OPERATORS).parts[0:3:2]))
def test_every_packaged_kernel_passes(path: Path) -> None:
    operator = load_operator(path.relative_to(OPERATORS).parts[0], "triton")
    sources = {file.name: file.read_text() for file in path.parent.glob("*.py")}
    assert forbidden(sources, operator.libraries, [entry.symbol for entry in operator.entries]) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("gl.device_print('x', values)", "nobody to talk to"),
        ("t = gl.inline_asm_elementwise('mov.u64 $0, %globaltimer;', '=l', [], gl.int64, False, 1)", "not arithmetic"),
        ("t = gl.pointer_type(gl.float32)", "may not be used"),
        ("bar._handle = 1", "outlive the call"),
    ],
)
def test_gluon_may_say_no_more_than_triton(line: str, why: str) -> None:
    kept = "    mbarrier.wait(bar, 0)\n"
    finding = found(HONEST["gluon_copy"].replace(kept, f"{kept}    {line}\n"))
    assert finding is not None
    assert why in finding.what


def test_the_template_itself_passes() -> None:
    assert found(source()) is None


def test_parts_may_stand_in_files_of_their_own() -> None:
    parts = {
        "kernel.py": "import tiles\nfrom rows import launch, WIDE\n\ndef entry(x, y):\n    launch(x, y, tiles.pick(x.shape[0]) + WIDE)\n",
        "tiles.py": "SMALL = 64\n\ndef pick(rows):\n    return SMALL if rows < 8 else 128\n",
        "rows.py": "import triton\nfrom triton import language as tl\n\nWIDE = 2\n\n@triton.jit\ndef _copy(x, y, B: tl.constexpr):\n    k = tl.arange(0, B)\n    tl.store(y + k, tl.load(x + k))\n\ndef launch(x, y, block):\n    _copy[(1,)](x, y, B=block)\n",
    }
    assert forbidden(parts) is None


def test_a_library_that_the_operator_allows_may_be_called_and_no_other_part_of_it() -> None:
    text = "from flash_attn.cute import flash_attn_func\nimport torch\n\ndef entry(q, k, v, o):\n    flash_attn_func(q, k, v)\n"
    assert found(text, libraries=("flash_attn.cute",)) is None
    assert found(text, libraries=("flash_attn.cute.flash_attn_func",)) is None
    assert (found(text) or pytest.fail("it must be refused")).verdict is V.FORBIDDEN_LIBRARY
    deep = "import flash_attn.cute\n\ndef entry(q):\n    flash_attn.cute.os.system('true')\n"
    assert found(deep, libraries=("flash_attn.cute",)) is not None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something put into the template, and what is said of it."""

    text: str
    says: str
    verdict: Correctness = V.FORBIDDEN_CALL


HOST = (
    # reaching outside
    Refusal("open('/etc/passwd')", "open is neither"),
    Refusal("print(x)", "print is neither"),
    Refusal("exit(0)", "exit is neither"),
    Refusal("eval('1')", "eval is neither"),
    Refusal("__import__('os').system('true')", "__import__ is neither"),
    Refusal("getattr(torch, 'mm')", "getattr is neither"),
    Refusal("setattr(x, 'a', 1)", "setattr is neither"),
    Refusal("globals()['n'] = 1", "storing into"),
    Refusal("type(x)", "type is neither"),
    Refusal("a = ().__class__", ".__class__"),
    Refusal("a = x._base", "._base"),
    Refusal("a = _kernel.fn", ".fn"),
    Refusal("a = __builtins__", "__builtins__ is neither"),
    Refusal("a = __file__", "__file__ is neither"),
    Refusal("import os", "top of a file"),
    Refusal("from os import system", "top of a file"),
    Refusal("t = torch", "the module torch is no value"),
    Refusal("t = tl", "the module triton.language is no value"),
    # work of a library
    Refusal("torch.matmul(x, weight, out=y)", "out reaches past"),
    Refusal("z = torch.matmul(x, weight)", "torch.matmul may not be used", V.FORBIDDEN_LIBRARY),
    Refusal("z = torch.nn.functional.rms_norm(x, (4,))", "no work that the candidate claims", V.FORBIDDEN_LIBRARY),
    Refusal("z = torch.ops.aten.mm(x, weight)", "torch.ops", V.FORBIDDEN_LIBRARY),
    Refusal("torch.compile(_kernel)", "torch.compile", V.FORBIDDEN_LIBRARY),
    Refusal("z = x @ weight", "MatMult on it is a library's work", V.FORBIDDEN_LIBRARY),
    Refusal("z = x * 2", "Mult on it", V.FORBIDDEN_LIBRARY),
    Refusal("z = -x", "USub on it", V.FORBIDDEN_LIBRARY),
    Refusal("x += weight", "Add on it", V.FORBIDDEN_LIBRARY),
    Refusal("a = x\n    b = (a, n)\n    for c in b:\n        d = c + 1", "Add on it", V.FORBIDDEN_LIBRARY),
    Refusal("z = x.view(-1)[None] + 1", "Add on it", V.FORBIDDEN_LIBRARY),
    Refusal("z = torch.empty(3) + 1", "Add on it", V.FORBIDDEN_LIBRARY),
    Refusal("z = sum(x)", "sum() of it", V.FORBIDDEN_LIBRARY),
    Refusal("z = max(x, y)", "max() of it", V.FORBIDDEN_LIBRARY),
    Refusal("z = float(x[0])", "float() of it", V.FORBIDDEN_LIBRARY),
    Refusal("z = x[weight]", "indexing by it", V.FORBIDDEN_LIBRARY),
    Refusal("z = 1 if x else 2", "asking its truth", V.FORBIDDEN_LIBRARY),
    Refusal("z = x == y", "comparing it", V.FORBIDDEN_LIBRARY),
    Refusal("z = [a * 2 for a in (x, y)]", "Mult on it", V.FORBIDDEN_LIBRARY),
    Refusal("z = x.sum()", ".sum of a value", V.FORBIDDEN_LIBRARY),
    Refusal("y.copy_(x)", ".copy_ of a value", V.FORBIDDEN_LIBRARY),
    Refusal("z = x.to(torch.float32)", ".to of a value", V.FORBIDDEN_LIBRARY),
    Refusal("z = x.item()", ".item of a value", V.FORBIDDEN_LIBRARY),
    Refusal("y[0] = x", "storing into y[0]"),
    Refusal("f = sum\n    f(x)", "sum is a function of the host"),
    Refusal("f = torch.empty\n    f(3)", "torch.empty is a function of the host"),
    Refusal("grid = lambda meta: (meta['x'] @ meta['y'],)\n    _kernel[grid](x, y, n, 1.0, BLOCK=64)", "MatMult on it", V.FORBIDDEN_LIBRARY),
    Refusal("grid = lambda meta: (1,)\n    z = grid({'a': x})", "grid of a launch and nothing else"),
    Refusal("z = (lambda a: a)(x)", "call a function by its name"),
    Refusal("z = [lambda a: a]", "grid of a launch"),
    Refusal("a = x.data_ptr()", "may not depend on an address", V.FORBIDDEN_LIBRARY),
    Refusal("a = x.t().contiguous()", "it may copy", V.FORBIDDEN_LIBRARY),
    Refusal("a = x.reshape(-1)", "write view", V.FORBIDDEN_LIBRARY),
    # clocks, streams, threads
    Refusal("torch.cuda.synchronize()", "whoever measures waits"),
    Refusal("s = torch.cuda.Stream()", "after the clock stopped"),
    Refusal("e = torch.cuda.Event()", "no use for a clock"),
    Refusal("with torch.cuda.stream(n):\n        pass", "context manager"),
    # state
    Refusal("global n2\n    n2 = 1", "state between calls"),
    Refusal("entry.cache = x", "setting entry.cache"),
    Refusal("x.seen = 1", "setting x.seen"),
    Refusal("torch.empty.a = 1", "setting torch.empty.a"),
    Refusal("del x", "nothing needs deleting"),
    Refusal("_kernel.cache = 1", "setting _kernel.cache"),
    Refusal("t = {}\n    t |= {1: x}", "change a table in place"),
    Refusal("torch = 1", "entry uses torch"),
    Refusal("max = 1", "entry uses max"),
    Refusal("def inner():\n        return x", "function inside a function"),
    Refusal("class A:\n        pass", "class can keep state"),
    Refusal("try:\n        n = 1\n    except ValueError:\n        pass", "seen, not caught"),
    Refusal("yield x", "generator keeps state"),
    Refusal("z = (a := 1)", "line of its own"),
    Refusal("match n:\n        case _:\n            pass", "if and elif"),
    Refusal("raise SystemExit(0)", "raise one of"),
    Refusal("raise ValueError(x) from x", "leave it out"),
    Refusal("n", "does nothing"),
    # options of a launch
    Refusal("_kernel[(1,)](x, y, n, 1.0, BLOCK=64, ptx_options='-o /tmp/a')", "ptx_options reaches past"),
    Refusal("_kernel[(1,)](x, y, n, 1.0, BLOCK=64, extern_libs={'a': '/b'})", "extern_libs reaches past"),
    Refusal("_kernel[(1,)](x, y, n, 1.0, BLOCK=64, ir_override='/a.ptx')", "ir_override reaches past"),
    Refusal("_kernel[(1,)](x, y, n, 1.0, **{'BLOCK': 64})", "** hides"),
    Refusal("z = torch.empty(3, pin_memory=True)", "pin_memory reaches past"),
    Refusal("z = torch.empty(3, names=n)", "names reaches past"),
    Refusal("triton.set_allocator(lambda a, b, c: a)", "takes a function of this file"),
    Refusal("triton.runtime.driver.active.get_current_target()", "triton.runtime"),
    # bombs
    Refusal("z = 9 ** 9 ** 9", "exponent must be"),
    Refusal("z = (9 ** 60) ** 60", "base no power"),
    Refusal("z = n ** n", "exponent must be"),
    Refusal("z = 1 << 1000000000", "a shift must be"),
    Refusal("z = 'a' * 1000000000", "arithmetic on texts"),
    Refusal("z = '%999999999d' % n", "arithmetic on texts"),
    Refusal("z = [0] * 1000000000", "repeating a list"),
    Refusal("z = 0x" + "f" * 40, "larger than any size"),
    Refusal("z = f'{n:999999999}'", "raise and assert alone"),
    Refusal("raise ValueError(f'{n:999999999}')", "text of any length"),
    Refusal("z = b'abc'", "no use for bytes"),
    Refusal("z = 1j", "no use for complex"),
)  # fmt: skip
DEVICE = (
    Refusal("tl.device_print('x', v)", "nobody to talk to"),
    Refusal("print(v)", "print is neither"),
    Refusal("tl.static_print(v)", "nobody to talk to"),
    Refusal("p = n.to(tl.pointer_type(tl.float32))", "address made of an integer"),
    Refusal("t = tl.extra.cuda.globaltimer()", "may not be used"),
    Refusal("t = tl.inline_asm_elementwise('mov.u64 $0, %globaltimer;', '=l', [], tl.int64, False, 1)", "not arithmetic on registers"),
    Refusal("t = tl.inline_asm_elementwise('ld.global.u32 $0, [$1];', '=r,l', [x], tl.int32, False, 1)", "not arithmetic"),
    Refusal("t = tl.inline_asm_elementwise('mov.u32 $0, $1; trap;', '=r,r', [n], tl.int32, False, 1)", "'trap'"),
    Refusal("t = tl.inline_asm_elementwise('mov.u32 $0, %%clock;', '=r', [], tl.int32, False, 1)", "not arithmetic"),
    Refusal("asm = 'trap;'\n    t = tl.inline_asm_elementwise(asm, '=r', [], tl.int32, False, 1)", "must be a plain text"),
    Refusal("f = tl.inline_asm_elementwise\n    t = f('trap;', '=r', [], tl.int32, False, 1)", "called by its name"),
    Refusal("t = tl.inline_asm_elementwise(*n)", "must be a plain text"),
    Refusal("t = torch.empty(3)", "torch.empty may not be used", V.FORBIDDEN_LIBRARY),
    Refusal("t = v.__class__", ".__class__"),
    Refusal("t = tl.core", "may not be used"),
    Refusal("t = tl.load.fn", ".fn"),
    Refusal("t = 9 ** 9 ** 9", "exponent must be"),
    Refusal("x[0] = 1", "storing into"),
    Refusal("with n:\n        pass", "context manager"),
)  # fmt: skip
TOP = (
    Refusal("import os", "os may not be imported"),
    Refusal("import ctypes", "ctypes may not be imported"),
    Refusal("from subprocess import run", "may not be imported"),
    Refusal("import cupy", "cupy may not be imported", V.FORBIDDEN_LIBRARY),
    Refusal("import flash_attn.cute", "may not be imported", V.FORBIDDEN_LIBRARY),
    Refusal("import torch.utils.cpp_extension", "may not be imported", V.FORBIDDEN_LIBRARY),
    Refusal("from torch.nn import functional", "no work that the candidate claims", V.FORBIDDEN_LIBRARY),
    Refusal("import triton.testing", "triton.testing may not be imported"),
    Refusal("from triton.language import *", "without dots and stars"),
    Refusal("from . import other", "without dots and stars"),
    Refusal("from triton.language.core import tensor", "may not be imported"),
    Refusal("import functools", "functools may not be imported"),
    Refusal("CACHE = {}\nCACHE['a'] = 1", "constants alone"),
    Refusal("CACHE = []", "would outlive the call"),
    Refusal("CACHE = dict()", "would outlive the call"),
    Refusal("CACHE = {'a': []}", "would outlive the call"),
    Refusal("CACHE = {**{}}", "would outlive the call"),
    Refusal("W = torch.zeros(3)", "would outlive the call"),
    Refusal("S = torch.cuda.Stream()", "would outlive the call"),
    Refusal("F = lambda: 1", "would outlive the call"),
    Refusal("def f(a=[]):\n    return a", "would outlive the call"),
    Refusal("def f(a=torch.empty(3)):\n    return a", "would outlive the call"),
    Refusal("def f(*a):\n    return a", "name every argument"),
    Refusal("def f(a: eval('1')):\n    return a", "an annotation is evaluated"),
    Refusal("def f(a) -> print('x'):\n    return a", "an annotation is evaluated"),
    Refusal("A: print('x') = 1", "an annotation is evaluated"),
    Refusal("class A(torch.Tensor):\n    pass", "class can keep state"),
    Refusal("async def f():\n    pass", "nothing to await"),
    Refusal("print(1)", "constants alone"),
    Refusal("while True:\n    pass", "constants alone"),
    Refusal("if True:\n    A = 1", "constants alone"),
    Refusal("@torch.compile\ndef f(a):\n    return a", "the decorator torch.compile"),
    Refusal("@triton.autotune(configs=[], key=[])\n@triton.jit\ndef f(a):\n    pass", "differs from process to process"),
    Refusal("@triton.heuristics({})\n@triton.jit\ndef f(a):\n    pass", "compute the value in the entry"),
    Refusal("@triton.jit(do_not_specialize=['''\ndef f(a):'''])\ndef f(a):\n    pass", "must be spelled out"),
    Refusal("@triton.jit(repr=print)\ndef f(a):\n    pass", "nothing else"),
    Refusal("A = 9 ** 9 ** 9", "exponent must be"),
    Refusal("A = 10 ** 15\nB = A * A", "larger than any size"),
    Refusal("A = 1 // 0", "no value"),
    Refusal("_kernel = 1", "defined twice", V.BUILD_FAILED),
    Refusal("tl = 1", "stands for two things"),
    Refusal("__all__ = ('a',)", "Python's own"),
    Refusal("def __getattr__(name):\n    return name", "Python's own"),
    Refusal("def twice(a):\n    return a * 2\n\ndef other(x):\n    return twice(x)", "Mult on it", V.FORBIDDEN_LIBRARY),
    Refusal("def _twice(a):\n    return a * 2\n\ndef other(x):\n    return _twice(a=x)", "Mult on it", V.FORBIDDEN_LIBRARY),
    Refusal("def _same(a):\n    return a\n\ndef other(x):\n    return _same(x) + 1", "Add on it", V.FORBIDDEN_LIBRARY),
)  # fmt: skip
TEXTS = (
    Refusal("def f(:\n", "no Python", V.BUILD_FAILED),
    Refusal("# -*- coding: utf-7 -*-\n", "another program", V.BUILD_FAILED),
    Refusal("\n# vim: set fileencoding=rot13 :\n", "another program", V.BUILD_FAILED),
    Refusal("\ufeffimport torch\n", "U+FEFF", V.BUILD_FAILED),
    Refusal("a = 1 # \u202e reversed\n", "U+202E", V.BUILD_FAILED),
    Refusal("a = '\u200b'\n", "U+200B", V.BUILD_FAILED),
    Refusal("a = '\udc80'\n", "U+DC80", V.BUILD_FAILED),
    Refusal("a = 1\x00\n", "U+0000", V.BUILD_FAILED),
    Refusal("a = 1\rimport os\n", "U+000D", V.BUILD_FAILED),
    Refusal("a = 1\x0cimport os\n", "U+000C", V.BUILD_FAILED),
    Refusal("\uff4fpen = 1\n", "not ASCII", V.BUILD_FAILED),
    Refusal("\u0430 = 1\n", "not ASCII", V.BUILD_FAILED),
    Refusal("a = '\\d'\n", "backslash", V.BUILD_FAILED),
    Refusal("a = '\\8'\n", "backslash", V.BUILD_FAILED),
    Refusal("a = 1if 1 else 2\n", "", V.BUILD_FAILED),
    Refusal("a = " + "-" * 900 + "1\n", "nest", V.BUILD_FAILED),
    Refusal("a = (\n" + "- - - - - - - - -\n" * 20_000 + "1)\n", "", V.BUILD_FAILED),
    Refusal("a = 1" + " " * 2000 + "\n", "longer than", V.BUILD_FAILED),
    Refusal("a = 1\n" * 60_000, "characters", V.BUILD_FAILED),
    Refusal("a = (" + "1,\n" * 61_000 + ")\n", "syntax nodes", V.BUILD_FAILED),
)  # fmt: skip


def _shown(refusal: Refusal) -> str:
    return refusal.text[:40].encode("unicode_escape").decode()


@pytest.mark.parametrize("refusal", HOST, ids=_shown)
def test_host_code_may_not(refusal: Refusal) -> None:
    _is_refused(source(host=refusal.text), refusal)


@pytest.mark.parametrize("refusal", DEVICE, ids=_shown)
def test_a_kernel_may_not(refusal: Refusal) -> None:
    _is_refused(source(device=refusal.text), refusal)


@pytest.mark.parametrize("refusal", TOP, ids=_shown)
def test_a_file_may_not(refusal: Refusal) -> None:
    _is_refused(source(top=refusal.text), refusal)


@pytest.mark.parametrize("refusal", TEXTS, ids=_shown)
def test_a_text_may_not(refusal: Refusal) -> None:
    _is_refused(refusal.text, refusal)


def _is_refused(text: str, refusal: Refusal) -> None:
    finding = found(text)
    assert finding is not None, "it passed"
    assert refusal.says in finding.what
    assert finding.verdict is refusal.verdict


def test_a_finding_names_file_and_line() -> None:
    finding = found(source(host="print(x)"))
    assert finding is not None
    assert finding.line == source(host="print(x)").splitlines().index("    print(x)") + 1
    assert str(finding).startswith(f"kernel.py:{finding.line}: ")


def test_parentheses_alone_do_no_harm() -> None:
    assert found("A = " + "(" * 150 + "1" + ")" * 150 + "\n\ndef entry(x):\n    pass\n") is None


@pytest.mark.parametrize(
    "name", ["../a.py", "a.so", "torch.py", "os.py", "sitecustomize.py", "__init__.py", "A.py", "a b.py", ""]
)
def test_a_file_name_shadows_nothing(name: str) -> None:
    finding = forbidden({"kernel.py": source(), name: ""})
    assert finding is not None
    assert finding.verdict is V.BUILD_FAILED
    assert "rename" in finding.what


def test_a_line_may_go_on_behind_a_backslash() -> None:
    assert found("A = 1 + \\\n    2\n") is None


def test_without_kernel_py_there_is_no_candidate() -> None:
    finding = forbidden({"other.py": source()})
    assert finding is not None
    assert "missing" in finding.what


def test_what_the_operator_calls_is_told_from_helpers_when_it_is_known() -> None:
    text = "def blocks(rows):\n    return rows * 2\n\ndef entry(x):\n    blocks(x.shape[0])\n"
    assert found(text) is not None
    assert found(text, entries=("entry",)) is None
    assert found(text, entries=("blocks",)) is not None


def test_a_sibling_gives_its_own_names_alone() -> None:
    other = "import torch\nA = 1\n"
    assert forbidden({"kernel.py": "from other import A\n", "other.py": other}) is None
    assert forbidden({"kernel.py": "from other import torch\n", "other.py": other}) is not None
    assert (
        forbidden({"kernel.py": "import other\n\ndef f(x):\n    other.torch.mm(x, x)\n", "other.py": other}) is not None
    )
    assert forbidden({"kernel.py": "import other\n\ndef f(x):\n    other.A = 1\n", "other.py": other}) is not None


# Any text at all

ANY_TEXT = st.text() | st.text(alphabet="abx_=+-*/@:.,()[]{}'\"\\#\n\t 019defimportlambdareturn", max_size=300)


@given(ANY_TEXT)
def test_no_text_makes_it_raise(text: str) -> None:
    finding = found(text)
    assert finding is None or finding.line >= 0


@given(st.dictionaries(st.text(max_size=12), ANY_TEXT, max_size=3), st.lists(st.text(max_size=9), max_size=2))
def test_no_set_of_files_makes_it_raise(sources: dict[str, str], libraries: list[str]) -> None:
    forbidden(sources, libraries)


@given(st.sampled_from(sorted(HONEST)), st.integers(0, 10**9), ANY_TEXT, st.integers(0, 40))
def test_no_damage_to_an_honest_source_makes_it_raise(name: str, at: int, text: str, cut: int) -> None:
    honest = HONEST[name]
    at %= len(honest)
    found(honest[:at] + text + honest[at + cut :])


EVERYWHERE = (
    "__import__('os')",
    "open('a')",
    "x.__dict__",
    "x._x",
    "eval('x')",
    "exec('x')",
    "vars()",
    "getattr(x, 'y')",
    "torch.mm",
    "torch.ops",
    "torch.cuda.Stream()",
    "tl.device_print('x')",
    "triton.testing",
    "(lambda: 1)()",
    "9 ** 9 ** 9",
    "f'{x}'",
    "b''",
    "{1}",
    "(yield)",
    "(a := 1)",
    "'a' * 9",
)
STATEMENTS = (
    "import os",
    "global state",
    "del x",
    "with x: pass",
    "class A: pass",
    "def f(): pass",
    "async def f(): pass",
    "x.y = 1",
    "x[0] = 1",
    "print(1)",
    "try: pass\nfinally: pass",
    "raise SystemExit",
    "exit()",
    "match x:\n    case _: pass",
)


@given(st.sampled_from(sorted(HONEST)), st.randoms(use_true_random=False), st.sampled_from(EVERYWHERE))
def test_a_forbidden_expression_is_found_wherever_it_replaces_another(name: str, rng: random.Random, bad: str) -> None:
    tree = ast.parse(HONEST[name])
    places = [(node, field, index) for node in _inside_functions(tree) for field, index in _expressions(node)]
    node, field, index = rng.choice(places)
    forbidden_one = ast.parse(bad, mode="eval").body
    if index is None:
        setattr(node, field, forbidden_one)
    else:
        getattr(node, field)[index] = forbidden_one
    assert found(ast.unparse(ast.fix_missing_locations(tree))) is not None


@given(st.sampled_from(sorted(HONEST)), st.randoms(use_true_random=False), st.sampled_from(STATEMENTS))
def test_a_forbidden_statement_is_found_wherever_it_is_put(name: str, rng: random.Random, bad: str) -> None:
    tree = ast.parse(HONEST[name])
    bodies = [node.body for node in _inside_functions(tree) if isinstance(getattr(node, "body", None), list)]
    body = rng.choice(bodies)
    at = rng.randint(0, len(body))
    body[at:at] = ast.parse(bad).body
    assert found(ast.unparse(ast.fix_missing_locations(tree))) is not None


def _inside_functions(tree: ast.Module) -> list[ast.AST]:
    return [node for item in tree.body if isinstance(item, ast.FunctionDef) for node in ast.walk(item)]


def _expressions(node: ast.AST) -> list[tuple[str, int | None]]:
    """Where an expression that is read stands below this node."""
    found: list[tuple[str, int | None]] = []
    for field, value in ast.iter_fields(node):
        if field in ("targets", "target") or isinstance(node, ast.JoinedStr):
            continue
        if isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
            found.append((field, None))
        elif isinstance(value, list):
            found += [(field, i) for i, item in enumerate(value) if isinstance(item, ast.expr)]
    return found


WORDS_CHECK = """
import dataclasses, importlib, sys
from kernelbraid.kernels.audit.cuda import policy_words as words
import triton, triton.language
from triton.backends.nvidia.compiler import CUDAOptions

def reach(dotted):
    for end in range(dotted.count(".") + 1, 0, -1):
        parts = dotted.split(".")
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            value = getattr(value, name, None)
        return value

known = [name for name in words.DEVICE | words.CALLS if name.startswith("triton.") and not name.startswith("triton.tools")]
print([name for name in known if reach(name) is None])
print({field.name for field in dataclasses.fields(CUDAOptions)} - words.REFUSED_KEYWORDS - words.LAUNCH_OPTIONS)
"""


def test_every_word_is_one_of_triton_and_every_launch_option_is_decided() -> None:
    """In a process of its own: this one stays free of what candidates import."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    done = subprocess.run([sys.executable, "-c", WORDS_CHECK], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[]", "set()"], done.stderr
