"""The whole numbers that a candidate's sources name: where its behaviour may change with the size of a call.

A source that dispatches on a size has to say which. What is worked out from constants alone is worked out here too:
products, shifts, sums, defined names, whole numbers written as floats. Numbers that are compared together may be meant
together (`tokens / 64 > 256`), so that their products and quotients count. What a source computes in another way (in
loops, from a string's characters, by the state of memory) is not found. Pure.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from kernelbraid.kernels.operators.operator import Sources

LEAST, MOST = 2, 1 << 62
"""What is smaller or larger is no size."""
MOST_TOGETHER = 6
"""Numbers of one comparison; of more, their products are left out."""
MOST_SHIFT = 62
MOST_DEPTH, MOST_OPERATIONS = 40, 40
"""Of one expression. A source that has more hides a size, and must not keep its reader busy."""
MOST_OPERANDS = 400_000
"""Of one C source, each looked at in several expressions."""

Number = int | float
Operation = Callable[[int, int], Number]


def literals(sources: Sources) -> frozenset[int]:
    """All of them, from LEAST to MOST.

    Python that does not parse names none: it does not run either. Beside a C file it is read as C too, which may
    include it whatever it is called.
    """
    is_python = {name: name.endswith(".py") for name in sources}
    is_c = any(name.endswith(".c") for name in sources)
    found = set(_of_c([text for name, text in sources.items() if is_c or not is_python[name]]))
    found.update(*(_of_python(text) for name, text in sources.items() if is_python[name]))
    return frozenset(value for value in found if LEAST <= value <= MOST)


def _shifted(a: int, b: int) -> Number:
    return a << b if 0 <= b <= MOST_SHIFT else 0


def _raised(a: int, b: int) -> Number:
    return a**b if 0 <= b <= MOST_SHIFT and abs(a) <= MOST else 0


_OPERATIONS: Mapping[str, Operation] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<<": _shifted,
    ">>": lambda a, b: a >> b if b >= 0 else 0,
    "|": lambda a, b: a | b,
    "&": lambda a, b: a & b,
    "^": lambda a, b: a ^ b,
    "**": _raised,
}


def _applied(symbol: str, left: int | None, right: int | None) -> int | None:
    """The whole number that comes out, if one does."""
    if left is None or right is None or symbol not in _OPERATIONS or max(abs(left), abs(right)) > MOST:
        return None
    try:
        return _whole(_OPERATIONS[symbol](left, right))
    except ZeroDivisionError:
        return None


def _whole(value: Number) -> int | None:
    """The value without its fraction: what is above 5000.5 is above 5000."""
    return int(value) if abs(value) <= MOST else None


def _together(values: Iterable[int]) -> Iterator[int]:
    """Sizes that numbers which are compared together may stand for."""
    own = sorted({value for value in values if value >= LEAST})
    if len(own) <= MOST_TOGETHER:
        for a, b in permutations(own, 2):
            yield from (a * b, a // b)


# Python


_PYTHON: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.BitXor: "^",
    ast.Pow: "**",
}
_KEEPS_ITS_ARGUMENT = ("int", "float", "abs", "round", "constexpr")


def _of_python(text: str) -> Iterator[int]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    names: dict[str, int] = {}
    for _ in range(2):
        for target, node in _bindings(tree):
            if (value := _value(node, names)) is not None:
                names[target] = value
    for part in ast.walk(tree):
        yield from _named(part, names)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they are bound to, tuples one by one."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from ((a.id, b) for a, b in zip(names, values, strict=False) if isinstance(a, ast.Name))
            case ast.Assign(targets=targets, value=value):
                yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.NamedExpr(target=ast.Name(id=name), value=value) | ast.keyword(arg=str() as name, value=value):
                yield name, value
            case ast.arguments(posonlyargs=first, args=last, defaults=defaults, kwonlyargs=only, kw_defaults=others):
                every = [
                    *zip(reversed([*first, *last]), reversed(defaults), strict=False),
                    *zip(only, others, strict=True),
                ]
                yield from ((each.arg, value) for each, value in every if value is not None)


def _named(node: ast.AST, names: Mapping[str, int]) -> Iterator[int]:
    """What this node alone says."""
    match node:
        case ast.BinOp(op=ast.RShift(), right=right) if (amount := _value(right, names)) is not None:
            yield 1 << max(0, min(amount, MOST_SHIFT))
        case ast.Compare(ops=ops) if not any(isinstance(op, ast.In | ast.NotIn) for op in ops):
            yield from _together(_compared(node, names))
    if isinstance(node, ast.expr) and (value := _value(node, names)) is not None:
        yield abs(value)


def _compared(node: ast.AST, names: Mapping[str, int]) -> Iterator[int]:
    """The largest expressions of constants within."""
    due = [node]
    while due:
        part = due.pop()
        if isinstance(part, ast.expr) and (value := _value(part, names)) is not None:
            yield value
        else:
            due += ast.iter_child_nodes(part)


def _value(node: ast.expr, names: Mapping[str, int], depth: int = 0) -> int | None:
    """The whole number that an expression of constants comes to, if it is no deeper than anyone writes."""
    if depth > MOST_DEPTH:
        return None
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value) if abs(value) <= MOST:
            return _whole(value)
        case ast.Constant(value=str() as text) if re.fullmatch(r"\s*\d{1,18}\s*", text):
            return int(text)
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=operator, right=right):
            return _applied(
                _PYTHON.get(type(operator), ""), _value(left, names, depth + 1), _value(right, names, depth + 1)
            )
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _applied("-", 0, _value(operand, names, depth + 1))
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return _applied("-", -1, _value(operand, names, depth + 1))
        case ast.Call(func=ast.Name(id="len"), args=[ast.Constant(value=str() | bytes() as text)]):
            return len(text)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[argument]):
            return _value(argument, names, depth + 1) if name in _KEEPS_ITS_ARGUMENT else None
    return None


# C, and what is like it


_TOKEN = re.compile(
    r"(?P<text>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+')"
    r"|(?P<remark>//[^\n]*|/\*(?s:.*?)(?:\*/|\Z))"
    r"|(?P<number>0[xX][0-9a-fA-F']+[uUlLzZ]*|0[bB][01']+[uUlLzZ]*|(?:\d[\d']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[uUlLzZfF]*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol><<<|>>>|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%|&^]=|->|[-+*/%|&^~<>=(){}\[\],;?:.!#\n])"
)
_STRENGTH = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_COMPARED = {"<", ">", "<=", ">=", "==", "!="}
_BETWEEN = {";", "{", "}", "&&", "||", ",", "?", ":"}
"""Where one comparison ends."""
_TYPES = {
    **dict.fromkeys(("char", "int8_t", "uint8_t", "bool", "_Bool"), 1),
    **dict.fromkeys(("short", "int16_t", "uint16_t", "_Float16", "__bf16", "half", "__half", "__nv_bfloat16"), 2),
    **dict.fromkeys(("int", "int32_t", "uint32_t", "float", "unsigned", "signed"), 4),
    **dict.fromkeys(("long", "int64_t", "uint64_t", "double", "size_t", "ssize_t", "ptrdiff_t", "intptr_t"), 8),
    "const": 0,
}


@dataclass
class _Reader:
    """Expressions of constants anywhere in a list of tokens."""

    tokens: list[tuple[str, str]]
    names: dict[str, int] = field(default_factory=dict)
    depth: int = 0
    """Brackets and signs that an expression is within."""
    left: int = MOST_OPERANDS
    """What may still be looked at."""

    def text(self, at: int) -> str:
        """The token there; nothing past the end."""
        return self.tokens[at][1] if 0 <= at < len(self.tokens) else ""

    def expression(self, at: int, least: int = 0) -> tuple[int, int] | None:
        """(value, next token) of the longest one from here on, of operators that are no weaker."""
        read = self.operand(at)
        for _ in range(MOST_OPERATIONS):
            if read is None or (strength := _STRENGTH.get(self.text(read[1]), -1)) < max(least, 1):
                break
            right = self.expression(read[1] + 1, strength + 1)
            value = None if right is None else _applied(self.text(read[1]), read[0], right[0])
            if right is None or value is None:
                break
            read = value, right[1]
        return read

    def operand(self, at: int) -> tuple[int, int] | None:
        """(value, next token) of one number, name, size or expression in brackets."""
        self.left -= 1
        kind, text = self.tokens[at] if at < len(self.tokens) and self.left > 0 else ("", "")
        if kind == "number":
            return None if (value := _number(text)) is None else (value, at + 1)
        if text == "sizeof":
            return self._size(at + 1)
        if kind == "name":
            return (self.names[text], at + 1) if text in self.names else None
        if text not in ("-", "+", "~", "(") or self.depth >= MOST_DEPTH:
            return None
        self.depth += 1
        inside = self._in_brackets(at) if text == "(" else self.operand(at + 1)
        self.depth -= 1
        return inside if inside is None or text == "(" else (_signed(text, inside[0]), inside[1])

    def _in_brackets(self, at: int) -> tuple[int, int] | None:
        """(expression), or (type) before an operand."""
        if (end := self._type(at + 1)) is not None:
            return self.operand(end[1])
        inside = self.expression(at + 1)
        return (inside[0], inside[1] + 1) if inside is not None and self.text(inside[1]) == ")" else None

    def _size(self, at: int) -> tuple[int, int] | None:
        return self._type(at + 1) if self.text(at) == "(" else None

    def _type(self, at: int) -> tuple[int, int] | None:
        """(bytes, token after the bracket) where a type of C's own stands here."""
        size = 0
        while self.text(at) in _TYPES:
            size, at = max(size, _TYPES[self.text(at)]), at + 1
        while size and self.text(at) == "*":
            size, at = 8, at + 1
        return (size, at + 1) if size and self.text(at) == ")" else None


def _signed(symbol: str, value: int) -> int:
    return -value if symbol == "-" else ~value if symbol == "~" else value


def _number(text: str) -> int | None:
    """The whole number that a literal of C is."""
    plain = text.replace("'", "").lower()
    try:
        if plain.startswith(("0x", "0b")):
            return int(plain.rstrip("ulz"), 0)
        plain = plain.rstrip("ulzf")
        if plain.isdigit():
            return int(plain, 8) if plain.startswith("0") and len(plain) > 1 else int(plain)
        return _whole(float(plain))
    except (ValueError, OverflowError):
        return None


def _of_c(texts: Sequence[str]) -> Iterator[int]:
    lines = [line for text in texts for line in _lines(text)]
    names: dict[str, int] = {}
    for _ in range(2):
        for line in lines:
            names |= _defined(_Reader(line, dict(names)))
    for line in lines:
        yield from _read(_Reader(line, names))


def _lines(text: str) -> list[list[tuple[str, str]]]:
    """The tokens of each of the preprocessor's lines, and of all the rest."""
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text.replace("\\\n", " "))]
    directives, code = _divided_lines([token for token in tokens if token[0] != "remark"])
    return [*directives, code]


def _divided_lines(tokens: list[tuple[str, str]]) -> tuple[list[list[tuple[str, str]]], list[tuple[str, str]]]:
    """The lines of the preprocessor one by one, and all the rest."""
    directives: list[list[tuple[str, str]]] = []
    code: list[tuple[str, str]] = []
    fresh, inside = True, False
    for token in tokens:
        if token[1] == "\n":
            fresh, inside = True, False
            continue
        if fresh and token[1] == "#":
            inside = True
            directives.append([])
        (directives[-1] if inside else code).append(token)
        fresh = False
    return directives, code


def _defined(reader: _Reader) -> Mapping[str, int]:
    """Names that stand for a number: `#define NAME expression`, `NAME = expression` in a declaration or an enum."""
    found: dict[str, int] = {}
    if [reader.text(at) for at in (0, 1)] == ["#", "define"] and reader.tokens[2:3]:
        if (read := reader.expression(3)) is not None and read[1] == len(reader.tokens):
            found[reader.text(2)] = read[0]
        return found
    for at, (kind, name) in enumerate(reader.tokens):
        if kind == "name" and reader.text(at + 1) == "=":
            read = reader.expression(at + 2)
            if read is not None and reader.text(read[1]) in (",", ";", "}"):
                found[name] = read[0]
    return found


def _read(reader: _Reader) -> Iterator[int]:
    """Every number and every expression of numbers, and what those of one comparison may stand for."""
    own: set[int] = set()
    compared, within = False, 0
    for at, (kind, text) in enumerate(reader.tokens):
        if text in _BETWEEN:
            yield from _together(own if compared else ())
            own, compared = set(), False
        compared |= text in _COMPARED
        if kind == "text" and re.fullmatch(r"\"\d{1,18}\"", text):
            yield int(text[1:-1])
        if kind == "number" and (number := _number(text)) is not None:
            yield number
        for value, end in _from(reader, at):
            yield abs(value)
            if at >= within:
                own.add(value)
                within = end
    yield from _together(own if compared else ())


def _from(reader: _Reader, at: int) -> Iterator[tuple[int, int]]:
    """(value, next token) of what begins here: with all that follows and binds more strongly than what precedes it,
    and alone."""
    kind, text = reader.tokens[at]
    if kind not in ("number", "name") and text not in ("(", "-", "~"):
        return
    before = reader.text(at - 1)
    if (whole := reader.expression(at, _STRENGTH.get(before, 0) + 1)) is not None:
        yield whole
        if before == ">>":
            yield 1 << max(0, min(whole[0], MOST_SHIFT)), whole[1]
    if (alone := reader.operand(at)) is not None:
        yield alone
