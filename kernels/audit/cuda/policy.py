"""What the source of a Triton candidate may say: an allowlist, checked before anything of it runs.

The process around a candidate protects the machine; this protects the measurement, because Python in the
candidate's process could otherwise patch torch, keep results between calls or launch where no clock looks. What is
refused is refused with a reason and a next step: honest kernels need none of it.

    kernel.py     one function for each entry: tensors in, tensors out, launches on the current stream
    other files   parts of it, imported by name

Host code may look at shapes and devices, make workspaces, choose tiles and launch. It keeps nothing: a module holds
imports, functions and constants alone. It computes nothing: `policy_tensors` follows tensors through it.
What a kernel does with its pointers cannot be read off its source; that is the audit's.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelbraid.kernels.audit.cuda import policy_words as words
from kernelbraid.kernels.audit.cuda.policy_source import (
    Finding,
    Function,
    Module,
    Refused,
    check_name,
    inside,
    read_modules,
    stored,
)
from kernelbraid.kernels.audit.cuda.policy_tensors import Tensors
from kernelbraid.kernels.audit.outcome import Correctness

__all__ = ["Finding", "forbidden"]

MOST_INTEGER = 1 << 64
MOST_EXPONENT = 64
MOST_SHIFT = 64
MOST_TEXT = 4096
_WORD = re.compile(r"[A-Za-z_][\w.]*")
_STATEMENT = re.compile(r"(?:@!?\w+\s+)?([a-z][a-z0-9]*)((?:\.\w+)*)(\s[^%\[\]@#\"]*)?")
_PLAIN = (
    *(ast.Expr, ast.Assign, ast.Return, ast.If, ast.For, ast.While, ast.Pass, ast.Break, ast.Continue, ast.Slice),
    *(ast.Tuple, ast.List, ast.Dict, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Starred),
    *(ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.comprehension, ast.expr_context, ast.operator, ast.unaryop),
    *(ast.boolop, ast.cmpop, ast.keyword),
)
"""Node types without a rule of their own: they are as good as their parts."""
_REASONS: Mapping[type[ast.AST], str] = {
    ast.ClassDef: "a class can keep state and stand in for a tensor; use functions",
    ast.AsyncFunctionDef: "there is nothing to await; write a plain function",
    ast.FunctionDef: "a function inside a function can keep state; define it at the top of the file",
    ast.Global: "state between calls would make one call's result another's; pass what is needed",
    ast.Nonlocal: "state between calls would make one call's result another's; pass what is needed",
    ast.Delete: "nothing needs deleting; leave it out",
    ast.Try: "an error must be seen, not caught; leave the try out",
    ast.With: "a context manager runs code of its own; the device and the stream are already set",
    ast.AsyncWith: "a context manager runs code of its own; the device and the stream are already set",
    ast.Import: "imports stand at the top of a file; move it there",
    ast.ImportFrom: "imports stand at the top of a file; move it there",
    ast.NamedExpr: "an assignment inside an expression; write it on a line of its own",
    ast.Yield: "a generator keeps state between calls; return a tuple",
    ast.YieldFrom: "a generator keeps state between calls; return a tuple",
    ast.Await: "there is nothing to await; write a plain call",
    ast.Match: "write if and elif",
    ast.Set: "use a tuple",
    ast.SetComp: "use a tuple",
    ast.Lambda: "a lambda may be the grid of a launch and nothing else; define a function",
    ast.JoinedStr: "formatting reads what it formats; it may stand in raise and assert alone",
}


def forbidden(
    sources: Mapping[str, str], libraries: Collection[str] = (), entries: Collection[str] | None = None
) -> Finding | None:
    """The first thing that the sources (file name to text) may not say; None when all of it may stand.

    `libraries` are dotted names whose functions an operator lets host code call. `entries` are the functions of
    kernel.py that are called with tensors; when not given, all whose names do not start with an underscore.
    Parses, never runs, and never raises whatever the text. The finding's verdict is build_failed for what no
    compiler would take, forbidden_library where a library would do the work, else forbidden_call.
    """
    try:
        modules = read_modules(sources, libraries)
        for module in modules:
            _Rules(module, {f".{other.file.removesuffix('.py')}": other for other in modules}, libraries).check()
        Tensors(modules, libraries, entries).check()
    except Refused as refused:
        return refused.finding
    return None


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where an expression stands: inside a kernel or on the host, and what its local names are."""

    device: bool = False
    names: frozenset[str] = frozenset()
    grids: frozenset[str] = frozenset()
    """Local names that stand for a lambda: a launch's grid and nothing else."""


@dataclass(frozen=True)
class _Rules:
    """The rules for one file."""

    module: Module
    siblings: Mapping[str, Module]
    libraries: Collection[str]

    def check(self) -> None:
        """Raises Refused for the first statement that breaks a rule."""
        known: dict[str, float] = {}
        for index, statement in enumerate(self.module.tree.body):
            match statement:
                case ast.Import() | ast.ImportFrom():
                    pass
                case ast.FunctionDef():
                    self._function(statement)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._constant_named(statement, name, value, known)
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if _matched(
                    names, values
                ):
                    for target, value in zip(names, values, strict=True):
                        self._constant_named(statement, ast.unparse(target), value, known)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value, annotation=annotation):
                    self._annotation(annotation)
                    self._constant_named(statement, name, value, known)
                case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                    pass
                case _:
                    raise self._refuse_type(statement, "a file holds imports, functions and named constants alone")

    def _refuse(self, node: ast.AST, what: str) -> Refused:
        return self.module.refuse(node, what)

    def _refuse_type(self, node: ast.AST, otherwise: str) -> Refused:
        return self._refuse(node, f"{type(node).__name__}: {_REASONS.get(type(node), otherwise)}")

    # Constants: the only thing a module may hold, evaluated here so that none of them is a bomb.

    def _constant_named(self, node: ast.stmt, name: str, value: ast.expr, known: dict[str, float]) -> None:
        check_name(self.module, node, name)
        self._constant(value)
        if (folded := self._folded(value, known)) is not None:
            known[name] = folded

    def _constant(self, node: ast.expr) -> None:
        match node:
            case ast.Constant():
                self._literal(node)
            case ast.Tuple(elts=parts):
                for part in parts:
                    self._constant(part)
            case ast.Dict(keys=keys, values=values):
                for part in (*filter(None, keys), *values):
                    self._constant(part)
                if None in keys:
                    self._not_constant(node)
            case ast.UnaryOp(operand=operand):
                self._constant(operand)
            case ast.BinOp(left=left, right=right):
                self._operation(node)
                self._constant(left)
                self._constant(right)
            case ast.Call(func=function, args=arguments, keywords=[]) if self._makes_constant(function):
                for part in arguments:
                    self._constant(part)
            case ast.Name(id=name) if name in self.module.constants:
                pass
            case ast.Name() | ast.Attribute() if self.module.dotted(node) is not None:
                self._expression(node, _Scope())
            case _:
                self._not_constant(node)

    def _not_constant(self, node: ast.AST) -> None:
        what = "what a file or a default holds must be a number, a text, a type, or a tuple or table of such"
        raise self._refuse(node, f"{what}: it would outlive the call; make it inside the function")

    def _makes_constant(self, function: ast.expr) -> bool:
        dotted = self.module.dotted(function) or ""
        named = dotted in (*words.CONSTEXPR, "triton.cdiv", "triton.next_power_of_2")
        return named or (dotted in words.HOST and dotted.startswith("math.")) or _is_name(function, "float")

    def _folded(self, node: ast.expr, known: Mapping[str, float]) -> float | None:
        """The value of plain arithmetic; None for anything else."""
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name):
                return known.get(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return None if (inner := self._folded(operand, known)) is None else -inner
            case ast.BinOp(left=left, right=right, op=op):
                return self._computed(node, op, self._folded(left, known), self._folded(right, known))
            case _:
                return None

    def _computed(self, node: ast.BinOp, op: ast.operator, left: float | None, right: float | None) -> float | None:
        if left is None or right is None or type(op) not in _FOLDS:
            return None
        try:
            value = _FOLDS[type(op)](left, right)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise self._refuse(node, f"this has no value ({error}); write the number") from error
        if isinstance(value, complex) or (isinstance(value, int) and abs(value) > MOST_INTEGER):
            raise self._refuse(node, "this number is larger than any size or address; write a smaller one")
        return value

    # Functions

    def _function(self, node: Function) -> None:
        check_name(self.module, node, node.name)
        for decorator in node.decorator_list:
            self._decorator(decorator)
        self._arguments(node.args)
        if node.returns is not None:
            self._annotation(node.returns)
        device = self.module.on_device(node)
        scope = _Scope(device, frozenset(self._locals(node, device)), frozenset(_lambdas(node)))
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        for statement in body:
            self._statement(statement, scope)

    def _locals(self, node: Function, device: bool) -> set[str]:
        names = {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)} | set(stored(node))
        for name in names:
            check_name(self.module, node, name)
            taken = name in self.module.imports or name in self.module.functions
            if taken or (name in words.BUILTINS and not device):
                raise self._refuse(node, f"{node.name} uses {name} for a value of its own; choose another name")
        return names

    def _decorator(self, node: ast.expr) -> None:
        function = node.func if isinstance(node, ast.Call) else node
        dotted = self.module.dotted(function) or ast.unparse(function)[:60]
        if dotted not in words.DECORATORS:
            raise self._refuse(node, f"the decorator {dotted} may not be used{_why(dotted)}; triton.jit may")
        for item in (*node.args, *node.keywords) if isinstance(node, ast.Call) else ():
            self._decorator_option(item)

    def _decorator_option(self, node: ast.AST) -> None:
        """Literal, and on one line: Triton looks for the kernel's first line in the text that follows."""
        if not isinstance(node, ast.keyword) or node.arg not in words.JIT_KEYWORDS:
            raise self._refuse(node, f"triton.jit takes {', '.join(sorted(words.JIT_KEYWORDS))} here, nothing else")
        if not _spelled_out(node.value):
            raise self._refuse(node, f"{node.arg} must be spelled out: numbers, or names of arguments")

    def _arguments(self, node: ast.arguments) -> None:
        if node.vararg or node.kwarg:
            raise self._refuse(node.vararg or node.kwarg or node, "name every argument; * and ** hide what is passed")
        for item in (*node.posonlyargs, *node.args, *node.kwonlyargs):
            if item.annotation is not None:
                self._annotation(item.annotation)
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self._constant(default)

    def _annotation(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=None):
                return
            case ast.Constant(value=str() as text) if _WORD.fullmatch(text):
                return
            case ast.Name(id=name) if name in words.TYPE_BUILTINS:
                return
            case ast.Name() | ast.Attribute() if self.module.dotted(node) in words.TYPES | words.DEVICE:
                return
            case ast.Subscript(value=left, slice=right) | ast.BinOp(left=left, right=right, op=ast.BitOr()):
                self._annotation(left)
                self._annotation(right)
            case ast.Tuple(elts=parts):
                for part in parts:
                    self._annotation(part)
            case ast.Constant(value=value) if value is ...:
                return
            case _:
                what = (
                    "an annotation is evaluated like any other code; name a type such as torch.Tensor or tl.constexpr"
                )
                raise self._refuse(node, what)

    # Statements and expressions

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        match node:
            case ast.Expr(value=ast.Call()):
                self._parts(node, scope)
            case ast.Expr():
                self._parts(node, scope)
                raise self._refuse(node, "this line does nothing; leave it out")
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._annotation(annotation)
                for part in (target, value):
                    if part is not None:
                        self._expression(part, scope)
            case ast.AugAssign(target=target, op=op, value=value):
                if isinstance(op, ast.BitOr | ast.BitAnd | ast.BitXor) and not scope.device:
                    raise self._refuse(node, "this could change a table in place; write name = ... instead")
                self._expression(target, scope)
                self._expression(value, scope)
            case ast.Raise(exc=ast.Name() as error, cause=None):
                self._raised(error)
            case ast.Raise(exc=ast.Call(func=error, args=arguments, keywords=[]), cause=None):
                self._raised(error)
                for argument in arguments:
                    self._message(argument, scope)
            case ast.Assert(test=test, msg=message):
                self._expression(test, scope)
                if message is not None:
                    self._message(message, scope)
            case ast.Assign(targets=[ast.Name()], value=ast.Lambda() as grid) if not scope.device:
                self._grid(grid, scope)
            case ast.If() | ast.For() | ast.While() | ast.Assign() | ast.Return() | ast.Pass() | ast.Break():
                self._parts(node, scope)
            case ast.Continue():
                pass
            case _:
                raise self._refuse_type(node, "a statement that no kernel needs; leave it out")

    def _raised(self, error: ast.expr) -> None:
        if not isinstance(error, ast.Name) or error.id not in words.EXCEPTIONS or error.id in self.module.imports:
            raise self._refuse(error, f"raise one of {', '.join(sorted(words.EXCEPTIONS))} with a plain message")

    def _message(self, node: ast.expr, scope: _Scope) -> None:
        for part in node.values if isinstance(node, ast.JoinedStr) else [node]:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None:
                    raise self._refuse(node, "a format could ask for a text of any length; leave it out")
                self._expression(part.value, scope)
            else:
                self._expression(part, scope)

    def _parts(self, node: ast.AST, scope: _Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child, scope)
            else:
                self._expression(child, scope)

    def _expression(self, node: ast.AST, scope: _Scope) -> None:
        match node:
            case ast.Constant():
                self._literal(node)
            case ast.Name():
                self._name(node, scope)
            case ast.Attribute():
                self._attribute(node, scope)
            case ast.Subscript():
                self._subscript(node, scope)
            case ast.Call():
                self._call(node, scope)
            case ast.BinOp():
                self._operation(node)
                self._parts(node, scope)
            case _ if isinstance(node, _PLAIN) and getattr(node, "is_async", 0) == 0:
                self._parts(node, scope)
            case _:
                raise self._refuse_type(node, "an expression that no kernel needs; write it plainly")

    def _grid(self, node: ast.Lambda, scope: _Scope) -> None:
        self._arguments(node.args)
        self._expression(node.body, scope)

    def _literal(self, node: ast.Constant) -> None:
        match node.value:
            case bool() | None:
                pass
            case int() if abs(node.value) > MOST_INTEGER:
                raise self._refuse(node, "this number is larger than any size or address; write a smaller one")
            case str() if len(node.value) > MOST_TEXT:
                raise self._refuse(node, f"this text has more than {MOST_TEXT} characters; shorten it")
            case bytes() | complex():
                raise self._refuse(node, f"a kernel has no use for {type(node.value).__name__}; leave it out")
            case _:
                pass

    def _operation(self, node: ast.BinOp) -> None:
        """Powers, shifts and repetitions can make a few letters into a number or a list of any size."""
        for part in (node.left, node.right):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                raise self._refuse(node, "arithmetic on texts can make them any length; write the text out")
            if isinstance(part, ast.List | ast.ListComp) and isinstance(node.op, ast.Mult):
                raise self._refuse(node, "repeating a list can make it any length; write it out")
        if isinstance(node.op, ast.Pow) and not (_small(node.right, MOST_EXPONENT) and not _has_power(node.left)):
            raise self._refuse(node, f"an exponent must be a number of at most {MOST_EXPONENT}, and its base no power")
        written = isinstance(node.right, ast.Constant | ast.BinOp)
        if isinstance(node.op, ast.LShift) and written and not _small(node.right, MOST_SHIFT):
            raise self._refuse(node, f"a shift must be a number of at most {MOST_SHIFT}")

    def _name(self, node: ast.Name, scope: _Scope, called: bool = False) -> None:
        name = node.id
        if name in scope.grids and isinstance(node.ctx, ast.Load):
            raise self._refuse(node, f"{name} is a lambda, so it may be the grid of a launch and nothing else")
        if not isinstance(node.ctx, ast.Load) or name in scope.names:
            check_name(self.module, node, name)
        elif name in self.module.names:
            self._only_called(node, called or scope.device or not self._on_host(self.module, name))
        elif (dotted := self.module.imports.get(name)) is not None:
            self._dotted(node, dotted, scope, called)
        elif name not in words.BUILTINS:
            raise self._refuse(node, f"{name} is neither defined here nor among Python's names that a kernel needs")
        else:
            self._only_called(node, called)

    def _only_called(self, node: ast.AST, called: bool) -> None:
        if not called:
            what = (
                f"{ast.unparse(node)[:60]} is a function of the host: call it, so that what it is given can be followed"
            )
            raise self._refuse(node, what)

    def _on_host(self, module: Module, name: str) -> bool:
        return name in module.functions and not module.on_device(module.functions[name])

    def _attribute(self, node: ast.Attribute, scope: _Scope, called: bool = False) -> None:
        if not isinstance(node.ctx, ast.Load):
            raise self._refuse(node, f"setting {ast.unparse(node)[:60]} would outlive the call; keep values in names")
        if (dotted := self.module.dotted(node)) is not None:
            self._dotted(node, dotted, scope, called)
            return
        self._expression(node.value, scope)
        own = isinstance(node.value, ast.Name) and node.value.id in self.module.functions
        self._member(node, node.attr, scope, own)

    def _member(self, node: ast.AST, name: str, scope: _Scope, of_function: bool = False) -> None:
        allowed = words.MEMBERS if scope.device else words.VIEWS | words.FACTS
        if name in allowed:
            return
        if name.startswith("_") or scope.device or of_function:
            raise self._refuse(node, f".{name} is not among what may be asked of it; leave it out")
        why = words.WHY_NOT.get(name, "work belongs into a kernel")
        what = f".{name} of a value is not among what host code may ask: {why}"
        raise self.module.refuse(node, what, Correctness.FORBIDDEN_LIBRARY)

    def _dotted(self, node: ast.AST, dotted: str, scope: _Scope, called: bool = False) -> None:
        """A name behind an import: allowed itself, or a member of an allowed value."""
        if dotted.startswith("."):
            self._of_sibling(node, dotted, scope, called)
            return
        head, tail = self._known_part(dotted, scope)
        if not head:
            raise self._refuse_dotted(node, dotted)
        for name in tail:
            self._member(node, name, replace(scope, device=True))
        if head in words.INLINE_ASSEMBLY and not called:
            raise self._refuse(node, "inline assembly must be called by its name, so that it can be read")
        self._only_called(node, called or head in words.VALUES | words.DEVICE or scope.device)

    def _known_part(self, dotted: str, scope: _Scope) -> tuple[str, list[str]]:
        """The longest part that is a word of its own (empty when there is none), and what is asked of it."""
        parts = dotted.split(".")
        for end in range(len(parts), 0, -1):
            if self._is_word(head := ".".join(parts[:end]), scope):
                return head, parts[end:]
        return "", []

    def _is_word(self, dotted: str, scope: _Scope) -> bool:
        if dotted in words.DEVICE or (dotted in words.HOST and not dotted.startswith("torch.")):
            return True
        return not scope.device and (dotted in words.HOST | words.MAKERS or inside(dotted, self.libraries))

    def _refuse_dotted(self, node: ast.AST, dotted: str) -> Refused:
        if dotted in words.MODULES or any(name.startswith(f"{dotted}.") for name in words.HOST | words.DEVICE):
            return self._refuse(node, f"the module {dotted} is no value; name what you need of it")
        work = dotted.startswith("torch.") and not dotted.startswith("torch.cuda.")
        verdict = Correctness.FORBIDDEN_LIBRARY if work else Correctness.FORBIDDEN_CALL
        return self.module.refuse(node, f"{dotted} may not be used{_why(dotted)}; leave it out", verdict)

    def _of_sibling(self, node: ast.AST, dotted: str, scope: _Scope, called: bool) -> None:
        file, _, name = dotted[1:].partition(".")
        sibling = self.siblings[f".{file}"]
        if name not in sibling.names:
            raise self._refuse(node, f"{file}.py defines no {name or 'value of that name'}; name what you need of it")
        self._only_called(node, called or scope.device or not self._on_host(sibling, name))

    def _subscript(self, node: ast.Subscript, scope: _Scope) -> None:
        if not isinstance(node.ctx, ast.Load):
            raise self._refuse(node, f"storing into {ast.unparse(node)[:60]} is work or state; let a kernel store")
        self._expression(node.value, scope)
        match node.slice:
            case ast.Lambda() as grid if not scope.device:
                self._grid(grid, scope)
            case ast.Name(id=name) if name in scope.grids:
                pass
            case index:
                self._expression(index, scope)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        dotted = self.module.dotted(node.func)
        for item in node.keywords:
            self._keyword(item, dotted)
        if dotted in words.INLINE_ASSEMBLY:
            self._assembly(node)
        self._called(node.func, scope)
        arguments: list[ast.AST] = [*node.args, *node.keywords]
        if dotted == "triton.set_allocator":
            arguments = self._allocator(node)
        for part in arguments:
            self._expression(part, scope)

    def _called(self, node: ast.expr, scope: _Scope) -> None:
        match node:
            case ast.Name():
                self._name(node, scope, called=True)
            case ast.Attribute():
                self._attribute(node, scope, called=True)
            case ast.Subscript():
                self._subscript(node, scope)
            case _:
                raise self._refuse(node, "call a function by its name")

    def _allocator(self, node: ast.Call) -> list[ast.AST]:
        """A function by its name, which is then called with numbers alone."""
        if len(node.args) != 1 or node.keywords or not self._is_function(node.args[0]):
            raise self._refuse(node, "set_allocator takes a function of this file by its name")
        return []

    def _is_function(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.module.functions

    def _keyword(self, node: ast.keyword, dotted: str | None) -> None:
        if node.arg is None:
            raise self._refuse(node, "name every argument; ** hides what is passed")
        if node.arg in words.REFUSED_KEYWORDS or (dotted in words.MAKERS and node.arg not in words.MAKER_KEYWORDS):
            raise self._refuse(node, f"the option {node.arg} reaches past the kernel; leave it out")

    def _assembly(self, node: ast.Call) -> None:
        text = node.args[0] if node.args else next((item.value for item in node.keywords if item.arg == "asm"), None)
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            raise self._refuse(node, "inline assembly must be a plain text, so that it can be read")
        for statement in re.split(r"[;{}]", text.value):
            if (line := statement.strip()) and not _is_arithmetic(line):
                what = f"{line[:60]!r} is not arithmetic on registers; inline assembly may do no more than that"
                raise self._refuse(node, what)


def _is_arithmetic(line: str) -> bool:
    """One PTX statement: a declaration or an instruction of the list, with no memory and no special register."""
    match = _STATEMENT.fullmatch(line)
    return bool(re.fullmatch(r"\.reg\s+\.\w+\s+[\w, <>]+", line)) or (match is not None and match[1] in words.PTX)


def _why(dotted: str) -> str:
    return next((f": {why}" for word, why in words.WHY.items() if f"{dotted}.".startswith(f"{word}.")), "")


def _spelled_out(node: ast.expr) -> bool:
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(map(_spelled_out, parts))
        case ast.Constant(value=str() as text):
            return text.isidentifier()
        case ast.Constant(value=int()):
            return True
        case _:
            return False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _small(node: ast.expr, most: int) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, int | float) and abs(inner.value) <= most


def _lambdas(node: Function) -> list[str]:
    """Names that stand for a lambda somewhere in the function."""
    found = [part.targets for part in ast.walk(node) if isinstance(part, ast.Assign) and _is_lambda(part.value)]
    return [target.id for targets in found for target in targets if isinstance(target, ast.Name)]


def _is_lambda(node: ast.expr) -> bool:
    return isinstance(node, ast.Lambda)


def _matched(names: Sequence[ast.expr], values: Sequence[ast.expr]) -> bool:
    return len(names) == len(values) and all(isinstance(name, ast.Name) for name in names)


def _has_power(node: ast.expr) -> bool:
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow | ast.LShift) for part in ast.walk(node))


_FOLDS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: lambda left, right: left**right,
    ast.LShift: lambda left, right: int(left) << int(right),
    ast.RShift: lambda left, right: int(left) >> int(right),
}
