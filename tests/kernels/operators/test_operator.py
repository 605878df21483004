"""Declarations: what ships is sound, and what is wrong in an operator.toml is named."""

from pathlib import Path

import pytest

from kernelbraid.kernels.operators.operator import (
    OperatorError,
    TargetMissing,
    load_operator,
    operator_names,
    operator_targets,
    read_sources,
)

MINIMAL = """\
name = "double"
summary = "twice x"
definition = "y = 2 x"

[contract]
rounding = "y is rounded once"

[[entry]]
symbol = "double_full"
path = "full"
dtype = "float32"
dims = ["rows", "width"]
inputs = [{ name = "x", dtype = "float32", shape = ["rows", "width"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["rows", "width"] }]

[[entry]]
symbol = "double_decode"
path = "decode"
dtype = "float32"
dims = ["rows", "width"]
inputs = [{ name = "x", dtype = "float32", shape = ["rows", "width"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["rows", 4] }]

[[workload]]
name = "many"
entry = "double_full"
dims = { rows = 8, width = 16 }
weight = 1
limit_ratio = 1.1

[[check]]
full = "double_full"
decode = "double_decode"
dims = { rows = 3, width = 5 }

[[hidden]]
full = "double_full"
decode = "double_decode"
dims = { rows = [1, 9], width = 7 }

[[region]]
name = "body"
paths = ["full", "decode"]
contract = ["rounding"]

[[baseline]]
name = "fast"
flags = ["-ffast-math"]

[tolerance.float32]
max_ratio = 1e-6
rms_ratio = 1e-7
"""

ON_TRITON = """
[target.triton]
libraries = ["triton"]
architectures = ["sm_90"]

[[target.triton.workload]]
name = "many more"
entry = "double_full"
dims = { rows = 4096, width = 0 }
weight = 1
limit_ratio = 1.1
"""


def declare(folder: Path, text: str) -> str:
    """A folder with this declaration and a root."""
    (folder / "operator.toml").write_text(text)
    (folder / "cpu" / "root").mkdir(parents=True)
    (folder / "cpu" / "root" / "double.c").write_text("// region body\n// endregion body\n")
    return str(folder)


@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in operator_names() for target in operator_targets(name)]
)
def test_what_ships_loads_and_can_be_timed_and_checked(name: str, target: str) -> None:
    # given / when
    operator = load_operator(name, target)

    # then
    assert operator.name == name
    assert target in operator.targets()
    assert operator.root_sources()
    assert {entry.path for entry in operator.entries} == {"full", "decode"}
    assert {operator.entry(workload.entry).path for workload in operator.workloads} == {"full", "decode"}
    assert {operator.entry(check.full).dtype for check in operator.checks} <= set(operator.tolerances)


@pytest.mark.parametrize("name", [name for name in operator_names() if "cpu" in operator_targets(name)])
def test_what_ships_for_the_cpu_shows_builds_that_are_no_candidates(name: str) -> None:
    operator = load_operator(name)
    assert {baseline.name for baseline in operator.baselines} >= {"root, -ffast-math", "eight partial sums"}
    assert all(operator.baseline_sources(baseline) for baseline in operator.baselines)
    assert {operator.entry(check.full).dtype for check in operator.checks} == set(operator.tolerances)


def test_a_folder_of_ones_own_is_read_as_declared(tmp_path: Path) -> None:
    # given / when
    operator = load_operator(declare(tmp_path, MINIMAL))

    # then
    entry = operator.entry("double_decode")
    assert entry.outputs[0].resolve({"rows": 2, "width": 9}) == (2, 4)
    assert operator.workload("many").dims == {"rows": 8, "width": 16}
    assert operator.checks[0].styles == ("normal",)
    assert operator.hidden[0].dims == {"rows": (1, 9), "width": 7}
    assert operator.baselines[0].flags == ("-ffast-math",)
    assert operator.root_sources() == operator.baseline_sources(operator.baselines[0])
    assert operator.targets() == ("cpu",)
    assert operator.declaration == MINIMAL


def test_another_target_replaces_what_it_declares_and_shares_the_rest(tmp_path: Path) -> None:
    # given
    folder = declare(tmp_path, MINIMAL + ON_TRITON)
    (tmp_path / "triton" / "root").mkdir(parents=True)

    # when
    cpu, triton = load_operator(folder), load_operator(folder, "triton")

    # then tensors may be empty there, and the rest is the same
    assert (cpu.target, triton.target) == ("cpu", "triton")
    assert operator_targets(folder) == ("cpu", "triton")
    assert [workload.dims["rows"] for workload in (*cpu.workloads, *triton.workloads)] == [8, 4096]
    assert (triton.libraries, triton.architectures, cpu.architectures) == (("triton",), ("sm_90",), ())
    assert (triton.entries, triton.checks, triton.contract) == (cpu.entries, cpu.checks, cpu.contract)
    assert (len(cpu.baselines), triton.baselines) == (1, ())


def test_a_target_that_is_not_declared_is_refused_with_those_that_are(tmp_path: Path) -> None:
    # given an operator for one GPU language alone
    text = MINIMAL[: MINIMAL.index("[[entry]]")] + ON_TRITON
    folder = declare(tmp_path, text)

    # when / then
    with pytest.raises(TargetMissing, match="declares nothing for cpu; its targets: triton"):
        load_operator(folder)
    with pytest.raises(TargetMissing, match="declares nothing for cuda; its targets: triton"):
        load_operator(folder, "cuda")


SHORT = """\
name = "double"
summary = "twice x"
definition = "y = 2 x"

[contract]
rounding = "y is rounded once"

[target.triton]
architectures = ["sm_90"]

[[target.triton.entry]]
symbols = { full = "double_full", decode = "double_decode" }
dtype = "float32"
dims = ["rows", "width"]
inputs = [{ name = "x", dtype = "float32", shape = ["rows", "width"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["rows", "width"] }]

[[target.triton.workload]]
entry = "double_full"
weight = 1
limit_ratio = 1.1
[target.triton.workload.shapes]
many = { rows = 8, width = 16 }
more = { rows = 9, width = 16 }

[[target.triton.workload]]
entry = "double_decode"
weight = 2
limit_ratio = 1.2
shapes = { few = { rows = 1, width = 16 } }

[[target.triton.check]]
styles = ["normal", "zeros"]
dims = [{ rows = 3, width = 5 }, { rows = 0, width = 5 }]

[[target.triton.hidden]]
dims = [{ rows = [1, 9], width = 7 }, { rows = 1, width = [1, 9] }]

[[target.triton.region]]
name = "body"
paths = ["full", "decode"]

[tolerance.float32]
max_ratio = 1e-6
rms_ratio = 1e-7
"""


def test_a_short_form_says_what_the_long_one_does(tmp_path: Path) -> None:
    # given / when
    operator = load_operator(declare(tmp_path, SHORT), "triton")

    # then
    assert [(entry.symbol, entry.path) for entry in operator.entries] == [
        ("double_full", "full"),
        ("double_decode", "decode"),
    ]
    assert operator.entries[0].inputs == operator.entries[1].inputs
    assert [(w.name, w.entry, w.dims["rows"], w.weight) for w in operator.workloads] == [
        ("many", "double_full", 8, 1),
        ("more", "double_full", 9, 1),
        ("few", "double_decode", 1, 2),
    ]
    assert [(c.full, c.decode, c.dims["rows"], c.styles) for c in operator.checks] == [
        ("double_full", "double_decode", 3, ("normal", "zeros")),
        ("double_full", "double_decode", 0, ("normal", "zeros")),
    ]
    assert [dict(hidden.dims) for hidden in operator.hidden] == [
        {"rows": (1, 9), "width": 7},
        {"rows": 1, "width": (1, 9)},
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [
        ('dtype = "float32"\ndims', 'path = "full"\ndtype = "float32"\ndims', "an entry with symbols names no path"),
        ("weight = 1\n", 'weight = 1\nname = "many"\n', "a workload with shapes has no name"),
        ('decode = "double_decode" }', 'prefill = "double_decode" }', "path 'prefill' is none of|lacks 'full'"),
        ("many = {", "few = {", "two of one name: workload few"),
    ],
)
def test_what_is_wrong_in_a_short_form_is_named(right: str, wrong: str, cause: str, tmp_path: Path) -> None:
    assert right in SHORT
    with pytest.raises(OperatorError, match=rf"operator\.toml.*({cause})"):
        load_operator(declare(tmp_path, SHORT.replace(right, wrong, 1)), "triton")


def test_with_more_entries_than_two_a_pair_names_its_own(tmp_path: Path) -> None:
    again = SHORT[SHORT.index("[[target.triton.entry]]") : SHORT.index("[[target.triton.workload]]")]
    text = SHORT + "\n" + again.replace("double_", "twice_")
    with pytest.raises(OperatorError, match="lacks 'full'"):
        load_operator(declare(tmp_path, text), "triton")


def test_a_target_may_not_redefine_what_the_operator_computes(tmp_path: Path) -> None:
    folder = declare(tmp_path, MINIMAL + '[target.triton]\ndefinition = "y = 3 x"\n')
    with pytest.raises(OperatorError, match=r"target\.triton. has the unknown definition"):
        load_operator(folder, "triton")


@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [
        ('summary = "twice x"\n', "", "lacks 'summary'"),
        ('name = "double"', "name = double", "not a valid declaration"),
        ('path = "full"', 'path = "prefill"', "double_full: path 'prefill' is none of full, decode"),
        ('symbol = "double_decode"', 'symbol = "double_full"', "two of one name: entry double_full|undeclared"),
        ('dtype = "float32", shape', 'dtype = "float8", shape', "x has the unknown dtype 'float8'"),
        ('shape = ["rows", "width"]', 'shape = ["rows", "depth"]', "x has undeclared dims: depth"),
        ('entry = "double_full"', 'entry = "double_fulll"', "undeclared entries: double_fulll"),
        ("rows = 8, width = 16", "rows = 8", "a shape of double_full lacks width"),
        ("rows = 8, width = 16", "rows = 0, width = 16", "rows = 0: dims are at least 1"),
        ("rows = [1, 9]", "rows = [9, 1]", r"rows = \(9, 1\)"),
        ("rows = [1, 9]", "rows = [1, 2, 3]", "not a valid declaration"),
        ("weight = 1\n", "weight = 0\n", "positive weight"),
        ("weight = 1\n", 'weight = "much"\n', "much"),
        ("limit_ratio = 1.1", "limit_ratio = 0.9", "limit_ratio of at least 1"),
        ("limit_ratio = 1.1\n", "", "lacks 'limit_ratio'"),
        (
            'full = "double_full"\ndecode = "double_decode"\ndims = { rows = 3',
            'full = "double_decode"\ndecode = "double_full"\ndims = { rows = 3',
            "double_decode against double_full",
        ),
        ("dims = { rows = 3, width = 5 }", 'dims = { rows = 3, width = 5 }\nstyles = ["odd"]', "unknown styles: odd"),
        ('paths = ["full", "decode"]', "paths = []", "region body"),
        ('paths = ["full", "decode"]', 'paths = ["prefill"]', "region body: its paths"),
        ('contract = ["rounding"]', 'contract = ["order"]', "undeclared contract items: order"),
        ("[tolerance.float32]", "[tolerance.float64]", "no tolerance for float32"),
        ("max_ratio = 1e-6\n", "", "max_ratio"),
        ("[[check]]", "[check]", "not a valid declaration"),
    ],
)
def test_what_is_wrong_is_named(right: str, wrong: str, cause: str, tmp_path: Path) -> None:
    # given a declaration with one mistake
    assert right in MINIMAL
    folder = declare(tmp_path, MINIMAL.replace(right, wrong, 1))

    # when / then the message names the file and the cause
    with pytest.raises(OperatorError, match=rf"operator\.toml.*({cause})"):
        load_operator(folder)


@pytest.mark.parametrize("repeated", ["workload", "region"])
def test_two_of_one_name_are_refused(repeated: str, tmp_path: Path) -> None:
    start = MINIMAL.index(f"[[{repeated}]]")
    block = MINIMAL[start : MINIMAL.index("\n\n", start) + 2]
    with pytest.raises(OperatorError, match=f"two of one name: {repeated}"):
        load_operator(declare(tmp_path, MINIMAL.replace(block, block + block)))


def test_an_unknown_operator_names_the_known_ones() -> None:
    with pytest.raises(OperatorError, match=r"no operator 'atention': known are .*linear.*rms_norm.*folder"):
        load_operator("atention")


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot read the sources"):
        read_sources(tmp_path / "missing")
    with pytest.raises(OperatorError, match="no source files"):
        read_sources(tmp_path)
    (tmp_path / "k.c").write_bytes(b"\xff")
    with pytest.raises(OperatorError, match=r"cannot read the sources.*utf-8"):
        read_sources(tmp_path)


def test_sources_of_a_folder_are_its_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.c").write_text("int b;\n")
    (tmp_path / "a.h").write_text("int a;\n")
    (tmp_path / "deeper").mkdir()
    assert dict(read_sources(tmp_path)) == {"a.h": "int a;\n", "b.c": "int b;\n"}
