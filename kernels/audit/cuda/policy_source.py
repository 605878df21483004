"""A candidate's files read without running them: limits, the syntax tree, and what each top-level name stands for.

The limits come first, because a text can be made so that merely parsing it takes memory or misleads a reader.
"""

import ast
import io
import re
import sys
import tokenize
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from kernelbraid.kernels.audit.cuda import policy_words as words
from kernelbraid.kernels.audit.outcome import Correctness

MOST_FILES = 32
MOST_BYTES = 256 * 1024
MOST_NODES = 60_000
MOST_DEPTH = 80
MOST_LINE = 1000
KERNEL = "kernel.py"

_FILE = re.compile(r"[a-z][a-z0-9_]{0,60}\.py")
_NAME = re.compile(r"_?[A-Za-z][A-Za-z0-9_]{0,100}|_")
_COOKIE = re.compile(r"^[ \t]*#.*?coding[:=][ \t]*([-\w.]+)")
_ESCAPE = re.compile(r"\\(?!$|[\\'\"nt0-3rxabfuUN])")
_RESERVED = frozenset({*sys.stdlib_module_names, "torch", "triton", "numpy", "sitecustomize", "usercustomize"})
Function = ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Finding:
    """What a source may not say: where it stands, why, what to do instead, and the verdict that it costs."""

    file: str
    line: int
    what: str
    verdict: Correctness

    def __str__(self) -> str:
        """As compilers say it."""
        return f"{self.file}:{self.line}: {self.what}"


class Refused(Exception):
    """How a finding leaves the walk; it never leaves `forbidden`."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class Module:
    """One file: its tree, its functions and constants, and what its imports stand for."""

    file: str
    tree: ast.Module
    imports: Mapping[str, str]
    """Local name to the dotted name of what was imported; that of a sibling's starts with a dot."""
    functions: Mapping[str, Function]
    constants: frozenset[str]

    def refuse(self, node: ast.AST, what: str, verdict: Correctness = Correctness.FORBIDDEN_CALL) -> Refused:
        """The exception that names this node."""
        return Refused(Finding(self.file, getattr(node, "lineno", 1), what, verdict))

    def dotted(self, node: ast.AST) -> str | None:
        """`tl.load` as `triton.language.load`; None for what does not start at an import."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id)
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)) is not None:
            return f"{base}.{node.attr}"
        return None

    def on_device(self, function: Function) -> bool:
        """Whether a decorator makes it a kernel, or a part of one."""
        return any(self.dotted(_undressed(item)) in words.KERNEL_DECORATORS for item in function.decorator_list)

    @cached_property
    def names(self) -> frozenset[str]:
        """What the file defines at its top."""
        return frozenset(self.functions) | self.constants


def read_modules(sources: Mapping[str, str], libraries: Collection[str]) -> tuple[Module, ...]:
    """All files parsed. Raises Refused for the first that is too large, misleading, or no Python."""
    _check_files(sources)
    for file, text in sources.items():
        _check_text(file, text)
    trees = {file: _parsed(file, sources[file]) for file in sorted(sources, key=lambda name: (name != KERNEL, name))}
    shells = {file: _module(file, tree, {}) for file, tree in trees.items()}
    return tuple(_module(file, tree, _imports(shells[file], shells, libraries)) for file, tree in trees.items())


def _check_files(sources: Mapping[str, str]) -> None:
    if KERNEL not in sources:
        raise _bad(KERNEL, 1, "this file is missing: it defines one function for each entry")
    for file in sources:
        if not _FILE.fullmatch(file) or file.removesuffix(".py") in _RESERVED:
            raise _bad(file, 1, "the name is taken or no plain lower-case name.py; rename the file")
    if len(sources) > MOST_FILES:
        raise _bad(KERNEL, 1, f"there are {len(sources)} files, of {MOST_FILES} allowed; join some")
    if (size := sum(map(len, sources.values()))) > MOST_BYTES:
        raise _bad(KERNEL, 1, f"the sources have {size} characters, of {MOST_BYTES} allowed; shorten them")


def _check_text(file: str, text: str) -> None:
    """A reader, Python's parser and its importer must all see the same text."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_LINE:
            raise _bad(file, number, f"the line is longer than {MOST_LINE} characters; break it")
        if odd := next((c for c in line.removesuffix("\r") if _invisible(c)), None):
            raise _bad(file, number, f"the character U+{ord(odd):04X} hides or reorders text; remove it")
        if number <= 2 and (cookie := _COOKIE.match(line)) and cookie[1].lower() not in ("utf-8", "utf8"):
            raise _bad(file, number, f"the encoding {cookie[1]} would make another program of this text; use UTF-8")
        if _ESCAPE.search(line):
            raise _bad(file, number, "a backslash that Python does not know; write it twice or leave it out")


def _invisible(character: str) -> bool:
    return character != "\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _parsed(file: str, text: str) -> ast.Module:
    try:
        tree = ast.parse(text, file)
        _check_size(file, tree)
        _check_numbers(file, text, tree)
        _check_identifiers(file, text)
    except SyntaxError as error:
        raise _bad(file, error.lineno or 1, f"this is no Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise _bad(file, 1, f"this cannot be parsed ({type(error).__name__}); nest less") from error
    return tree


def _check_size(file: str, tree: ast.Module) -> None:
    """Without recursion, so that what follows may recurse."""
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    nodes = 0
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if depth > MOST_DEPTH:
            raise _bad(file, getattr(node, "lineno", 1), f"this nests deeper than {MOST_DEPTH} levels; take it apart")
        if nodes > MOST_NODES:
            raise _bad(file, getattr(node, "lineno", 1), f"the file has more than {MOST_NODES} syntax nodes; split it")
        stack += [(child, depth + 1) for child in ast.iter_child_nodes(node)]


def _check_numbers(file: str, text: str, tree: ast.Module) -> None:
    """`1if x` is a number and a word to some versions of Python, with a warning, and an error to later ones."""
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.end_col_offset is not None:
            after = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset :][:1]
            if after.isalpha() and not isinstance(node.value, bool):
                raise _bad(file, node.lineno, "a number runs into a word; write a space between them")


def _check_identifiers(file: str, text: str) -> None:
    """Python folds look-alike letters into plain ones, so that a reader would see another name than it does."""
    if text.isascii():
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NAME, tokenize.ERRORTOKEN, tokenize.OP) and not token.string.isascii():
            raise _bad(file, token.start[0], f"{token.string!r} is not ASCII; spell names in plain letters")


def _module(file: str, tree: ast.Module, imports: Mapping[str, str]) -> Module:
    functions: dict[str, Function] = {}
    constants: set[str] = set()
    for statement in tree.body:
        for name in _defined(statement):
            if name in functions or name in constants:
                raise _bad(file, statement.lineno, f"{name} is defined twice; keep one")
            if isinstance(statement, ast.FunctionDef):
                functions[name] = statement
            else:
                constants.add(name)
    return Module(file, tree, MappingProxyType(dict(imports)), MappingProxyType(functions), frozenset(constants))


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return stored(statement)
    return []


def stored(tree: ast.AST) -> list[str]:
    """Every name that is assigned somewhere in it."""
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]


def _imports(module: Module, siblings: Mapping[str, Module], libraries: Collection[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for statement in module.tree.body:
        match statement:
            case ast.Import():
                pairs = [_import(module, siblings, libraries, statement, item) for item in statement.names]
            case ast.ImportFrom():
                pairs = [_import_from(module, siblings, libraries, statement, item) for item in statement.names]
            case _:
                continue
        for name, dotted in pairs:
            if name in module.names or found.get(name, dotted) != dotted:
                raise module.refuse(statement, f"{name} stands for two things; rename one")
            found[check_name(module, statement, name)] = dotted
    return found


def _import(
    module: Module, siblings: Mapping[str, Module], libraries: Collection[str], node: ast.AST, item: ast.alias
) -> tuple[str, str]:
    if f"{item.name}.py" in siblings:
        return item.asname or item.name, f".{item.name}"
    if item.name not in words.MODULES and not inside(item.name, libraries):
        raise module.refuse(node, not_importable(item.name, libraries), _cost(item.name))
    return (item.asname, item.name) if item.asname else ((top := item.name.partition(".")[0]), top)


def _import_from(
    module: Module, siblings: Mapping[str, Module], libraries: Collection[str], node: ast.ImportFrom, item: ast.alias
) -> tuple[str, str]:
    source = node.module or ""
    dotted = f"{source}.{item.name}"
    if node.level or item.name == "*":
        raise module.refuse(node, "name what is imported, and from which file or module, without dots and stars")
    if dotted == "__future__.annotations":
        return "annotations", dotted
    if (sibling := siblings.get(f"{source}.py")) is not None:
        if item.name not in sibling.names:
            raise module.refuse(node, f"{sibling.file} defines no {item.name}; import from where it is defined")
        return item.asname or item.name, f".{dotted}"
    known = words.MODULES | words.HOST | words.DEVICE | words.MAKERS | words.TYPES | words.DECORATORS
    if dotted not in known and not inside(dotted, libraries):
        raise module.refuse(node, not_importable(dotted, libraries), _cost(source))
    return item.asname or item.name, dotted


def inside(dotted: str, libraries: Collection[str]) -> bool:
    """Whether a name is an allowed library, or one public name of it."""
    above, _, name = dotted.rpartition(".")
    return not name.startswith("_") and (dotted in libraries or above in libraries)


def not_importable(dotted: str, libraries: Collection[str]) -> str:
    """Why it is not, and what is."""
    why = next((why for word, why in words.WHY.items() if f"{dotted}.".startswith(f"{word}.")), "")
    allowed = ", ".join(sorted({"torch", "triton", "triton.language", "math", *libraries}))
    return (
        f"{dotted} may not be imported{': ' if why else ''}{why}; allowed are {allowed} and the candidate's own files"
    )


def _cost(imported: str) -> Correctness:
    """Python's own modules reach the system; another's would do the candidate's work."""
    own = imported.partition(".")[0] in (*sys.stdlib_module_names, "triton", "")
    return Correctness.FORBIDDEN_CALL if own else Correctness.FORBIDDEN_LIBRARY


def check_name(module: Module, node: ast.AST, name: str) -> str:
    """The name, if it is one that a candidate may give. Raises Refused."""
    if not _NAME.fullmatch(name):
        raise module.refuse(node, f"the name {name} is Python's own or too long; choose a plain one")
    return name


def _undressed(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _bad(file: str, line: int, what: str) -> Refused:
    return Refused(Finding(file, line, what, Correctness.BUILD_FAILED))
