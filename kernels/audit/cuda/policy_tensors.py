"""Which values of the host code are tensors, and that Python does no arithmetic with them.

`x @ w` names no library and calls one. What an entry is passed and what it makes is a tensor; the rest follows
through assignments and calls, over all files, whatever the order of the statements.
"""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelbraid.kernels.audit.cuda import policy_words as words
from kernelbraid.kernels.audit.cuda.policy_source import KERNEL, Function, Module, inside
from kernelbraid.kernels.audit.outcome import Correctness

MOST_ROUNDS = 16
_GATHERING = frozenset({"dict", "enumerate", "list", "max", "min", "reversed", "tuple", "zip"})
_COMPUTING = frozenset(
    {"abs", "bool", "divmod", "float", "int", "max", "min", "range", "round", "sorted", "str", "sum"}
)


@dataclass
class Facts:
    """What is known so far of one host function: its tensors by name, and whether it returns one."""

    module: Module
    node: Function
    tensors: set[str] = field(default_factory=set)
    returns: bool = False

    @property
    def size(self) -> int:
        """Grows with every round that finds something."""
        return len(self.tensors) + self.returns

    @property
    def parameters(self) -> list[str]:
        """Names in their order."""
        arguments = self.node.args
        return [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


class Tensors:
    """The tensors of all host functions of a candidate."""

    def __init__(self, modules: Sequence[Module], libraries: Collection[str], entries: Collection[str] | None) -> None:
        self._libraries = libraries
        self._facts: Mapping[tuple[str, str], Facts] = {
            (module.file, name): Facts(module, node)
            for module in modules
            for name, node in module.functions.items()
            if not module.on_device(node)
        }
        self._constants = _constant_arguments(modules)
        for (file, name), facts in self._facts.items():
            # A grid's lambda is given the launch's arguments by Triton, tensors among them.
            facts.tensors |= {item for node in ast.walk(facts.node) for item in _lambda_arguments(node)}
            public = not name.startswith("_") and not facts.node.decorator_list
            if file == KERNEL and (name in entries if entries is not None else public):
                facts.tensors |= set(facts.parameters)

    def check(self) -> None:
        """Raises Refused where Python would compute with a tensor."""
        self._spread()
        for facts in self._facts.values():
            for node in ast.walk(facts.node):
                self._check(facts, node)

    def _spread(self) -> None:
        for _ in range(MOST_ROUNDS):
            before = self._known()
            for facts in self._facts.values():
                for node in ast.walk(facts.node):
                    self._learn(facts, node)
            if self._known() == before:
                return
        first = next(iter(self._facts.values()))
        raise first.module.refuse(first.node, "tensors pass through too many hands to be followed; call more directly")

    def _known(self) -> int:
        return sum(facts.size for facts in self._facts.values())

    def _learn(self, facts: Facts, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(facts, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(facts, target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind(facts, target, value)
            case ast.Return(value=ast.expr() as value):
                facts.returns |= self.is_tensor(facts, value)
            case ast.Call():
                self._pass(facts, node)
            case _:
                pass

    def _bind(self, facts: Facts, target: ast.expr, value: ast.expr) -> None:
        for into, origin in _pairs(target, value):
            if self.is_tensor(facts, origin):
                facts.tensors |= {node.id for node in ast.walk(into) if isinstance(node, ast.Name)}

    def _pass(self, facts: Facts, call: ast.Call) -> None:
        """Arguments to the parameters of the function called."""
        callee = self._callee(facts, call.func)
        if callee is None:
            return
        names = callee.parameters
        if any(isinstance(item, ast.Starred) and self.is_tensor(facts, item) for item in call.args):
            callee.tensors |= set(names)
        pairs = [*zip(names, call.args, strict=False), *((item.arg, item.value) for item in call.keywords)]
        callee.tensors |= {name for name, value in pairs if name in names and self.is_tensor(facts, value)}

    def _callee(self, facts: Facts, function: ast.expr) -> Facts | None:
        if isinstance(function, ast.Name) and (own := self._facts.get((facts.module.file, function.id))) is not None:
            return own
        dotted = facts.module.dotted(function) or ""
        _, file, name = [*dotted.split("."), "", ""][:3]
        return self._facts.get((f"{file}.py", name)) if dotted.startswith(".") else None

    def is_tensor(self, facts: Facts, node: ast.expr) -> bool:
        """Whether a value may be a tensor, or hold one."""
        match node:
            case ast.Name(id=name):
                return name in facts.tensors
            case ast.Attribute(value=value, attr=attr):
                return attr in words.VIEWS and self.is_tensor(facts, value)
            case ast.Call():
                return self._gives_tensor(facts, node)
            case ast.Subscript(slice=ast.Constant(value=str() as key)) if key in self._constants:
                return False
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self.is_tensor(facts, value)
            case ast.IfExp(body=first, orelse=second):
                return self.is_tensor(facts, first) or self.is_tensor(facts, second)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts) | ast.BoolOp(values=parts):
                return any(self.is_tensor(facts, part) for part in parts)
            case ast.ListComp(elt=value) | ast.GeneratorExp(elt=value) | ast.DictComp(value=value):
                return self.is_tensor(facts, value)
            case _:
                return False

    def _gives_tensor(self, facts: Facts, call: ast.Call) -> bool:
        if (callee := self._callee(facts, call.func)) is not None:
            return callee.returns
        if (dotted := facts.module.dotted(call.func)) is not None:
            return dotted in words.MAKERS or inside(dotted, self._libraries)
        match call.func:
            case ast.Name(id=name) if name in words.BUILTINS:
                return name in _GATHERING and any(self.is_tensor(facts, value) for value in call.args)
            case ast.Name(id=name):
                return name not in facts.module.functions
            case ast.Attribute(value=value, attr=attr):
                return attr in (words.VIEWS | {"get", "items", "values"}) and self.is_tensor(facts, value)
            case _:
                return False

    def _check(self, facts: Facts, node: ast.AST) -> None:
        for part, deed in _computed(node):
            if self.is_tensor(facts, part):
                what = f"{ast.unparse(part)[:60]} is a tensor, and {deed} is a library's work; do it in a kernel"
                raise facts.module.refuse(part, what, Correctness.FORBIDDEN_LIBRARY)


def _constant_arguments(modules: Sequence[Module]) -> frozenset[str]:
    """Names that are tl.constexpr in every kernel that has them."""
    constant: set[str] = set()
    other: set[str] = set()
    for module in modules:
        for node in filter(module.on_device, module.functions.values()):
            for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                fixed = item.annotation is not None and module.dotted(item.annotation) in words.CONSTEXPR
                (constant if fixed else other).add(item.arg)
    return frozenset(constant - other)


def _lambda_arguments(node: ast.AST) -> list[str]:
    return (
        [item.arg for item in ast.walk(node.args) if isinstance(item, ast.arg)] if isinstance(node, ast.Lambda) else []
    )


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`a, b = c, d` one by one; anything else as a whole."""
    match target, value:
        case ast.Tuple(elts=into) | ast.List(elts=into), ast.Tuple(elts=origins) | ast.List(elts=origins):
            if len(into) == len(origins) and not _starred(target) and not _starred(value):
                return list(zip(into, origins, strict=True))
        case _:
            pass
    return [(target, value)]


def _starred(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Starred) for child in ast.iter_child_nodes(node))


def _computed(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The operands that Python would compute with, and how."""
    match node:
        case ast.BinOp(left=left, right=right, op=op):
            yield from ((part, f"{type(op).__name__} on it") for part in (left, right))
        case ast.AugAssign(target=target, value=value, op=op):
            yield from ((part, f"{type(op).__name__} on it") for part in (target, value))
        case ast.UnaryOp(operand=operand, op=op):
            yield operand, f"{type(op).__name__} on it"
        case ast.Compare(left=left, comparators=others, ops=ops):
            if not all(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                yield from ((part, "comparing it") for part in (left, *others))
        case ast.BoolOp(values=parts):
            yield from ((part, "asking its truth") for part in parts)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            yield test, "asking its truth"
        case ast.comprehension(ifs=tests):
            yield from ((test, "asking its truth") for test in tests)
        case ast.Subscript(slice=index):
            yield index, "indexing by it"
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _COMPUTING:
            yield from ((part, f"{name}() of it") for part in arguments)
        case _:
            pass
