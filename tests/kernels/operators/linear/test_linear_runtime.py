"""linear on a device: the same bits for a row at any batch, under graphs, with a bias; refusals, differences found.

python -m pytest tests/kernels/operators/linear/test_linear_runtime.py -m gpu
"""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernelbraid.kernels.audit.cuda.driver import device_count  # noqa: E402
from kernelbraid.kernels.runtime import linear as module  # noqa: E402
from kernelbraid.kernels.runtime import linear_chunked  # noqa: E402
from kernelbraid.kernels.runtime.linear import LinearBitsDiffer, LinearUnsupported, linear, prepare  # noqa: E402
from kernelbraid.kernels.runtime.linear_choice import by_rule, table  # noqa: E402

gpu = [pytest.mark.gpu, pytest.mark.skipif(not device_count(), reason="no NVIDIA GPU here")]
ROWS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 500, 512, 1000, 2048)
SHAPES = [(1536, 8960), (2048, 1536), (2560, 9728), (128, 2048), (72, 40), (264, 1000), (8, 8)]


@pytest.fixture
def unprepared() -> Iterator[None]:
    before = dict(module._prepared)
    module._prepared.clear()
    yield
    module._prepared.clear()
    module._prepared.update(before)


def tensors(rows: int, outs: int, width: int) -> tuple[Any, Any, Any]:
    """x, weight, and a result that nothing wrote."""
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outs, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    return x, weight, torch.full((rows, outs), float("nan"), device="cuda", dtype=torch.bfloat16)


def same_bits(one: Any, other: Any) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_tensors_that_are_not_on_a_device_are_refused() -> None:
    x, weight, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((4, 64), (8, 64), (4, 8)))
    with pytest.raises(LinearUnsupported, match="CUDA device"):
        linear(x, weight, out)


class TestOnDevice:
    pytestmark = gpu

    @pytest.mark.parametrize(("outs", "width"), SHAPES)
    def test_a_row_has_the_same_bits_in_every_batch(self, outs: int, width: int) -> None:
        # given all rows at once
        x, weight, whole = tensors(max(ROWS), outs, width)
        linear(x, weight, whole)

        # when fewer are multiplied, then theirs are the same bits
        for rows in ROWS:
            out = torch.full_like(whole[:rows], float("nan"))
            linear(x[:rows], weight, out)
            assert same_bits(out, whole[:rows]), rows

        # and wherever the row lies
        out = torch.full_like(whole[:1], float("nan"))
        linear(x[1000:1001], weight, out)
        assert same_bits(out, whole[1000:1001])

    @pytest.mark.parametrize(("outs", "width"), SHAPES)
    def test_it_is_as_near_to_float64_as_one_rounding_allows(self, outs: int, width: int) -> None:
        for rows in (1, 40, 700):
            x, weight, out = tensors(rows, outs, width)
            linear(x, weight, out)
            exact = x.double() @ weight.double().t()
            assert (out.double() - exact).norm() / exact.norm() < 3e-3

    @pytest.mark.parametrize(("outs", "width"), SHAPES)
    def test_a_bias_is_added_before_the_only_rounding(self, outs: int, width: int) -> None:
        bias = torch.randn(outs, device="cuda", dtype=torch.bfloat16)
        x, weight, whole = tensors(max(ROWS), outs, width)
        linear(x, weight, whole, bias)
        exact = x.double() @ weight.double().t() + bias.double()
        assert (whole.double() - exact).norm() / exact.norm() < 2.2e-3
        for rows in ROWS:
            out = torch.full_like(whole[:rows], float("nan"))
            linear(x[:rows], weight, out, bias)
            assert same_bits(out, whole[:rows]), rows

    def test_more_rows_than_a_table_knows_go_in_blocks(self) -> None:
        x, weight, out = tensors(8192 + 77, 128, 2048)
        linear(x, weight, out)
        tail = torch.full_like(out[8192:], float("nan"))
        linear(x[8192:], weight, tail)
        assert same_bits(tail, out[8192:])

    def test_no_rows_are_no_work(self) -> None:
        x, weight, out = tensors(0, 128, 2048)
        linear(x, weight, out)

    @pytest.mark.parametrize("rows", [1, 64, 2048])
    @pytest.mark.parametrize(("outs", "width"), SHAPES[:2])
    def test_a_graph_replays_the_same_bits_on_new_data(self, outs: int, width: int, rows: int) -> None:
        # given a captured call
        x, weight, out = tensors(rows, outs, width)
        prepare(outs, width)
        linear(x, weight, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            linear(x, weight, out)

        # when it is replayed on other data
        x.normal_()
        graph.replay()

        # then
        eager = torch.empty_like(out)
        linear(x, weight, eager)
        assert same_bits(out, eager)

    def test_streams_do_not_disturb_each_other(self) -> None:
        x, weight, expected = tensors(16, 1536, 8960)
        linear(x, weight, expected)
        streams, outs = [torch.cuda.Stream() for _ in range(4)], []
        torch.cuda.synchronize()
        for _ in range(20):
            for stream in streams:
                with torch.cuda.stream(stream):
                    outs.append(torch.empty_like(expected))
                    linear(x, weight, outs[-1])
        torch.cuda.synchronize()
        assert all(same_bits(out, expected) for out in outs)

    def test_an_unprepared_shape_is_refused_while_a_graph_is_captured(self, unprepared: None) -> None:
        x, weight, out = tensors(4, 136, 64)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out.zero_()
            with pytest.raises(LinearUnsupported, match=r"prepare\(136, 64\)"):
                linear(x, weight, out)

    def test_a_difference_between_ways_is_an_error_when_a_shape_is_prepared(
        self, unprepared: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # given a kernel that cuts sums of few rows elsewhere
        run = linear_chunked.run

        def other(tile: Any, chunk_steps: int, x: Any, *rest: Any) -> None:
            run(tile, chunk_steps if x.shape[0] > 8 else 20, x, *rest)

        monkeypatch.setattr(linear_chunked, "run", other)
        monkeypatch.setattr(module, "table", lambda: Elsewhere())

        # when / then
        with pytest.raises(LinearBitsDiffer, match="8960 -> 1536"):
            prepare(1536, 8960)
        assert module._prepared == {}

    @pytest.mark.parametrize(("outs", "width"), sorted(table().shapes))
    def test_every_shape_of_the_table_is_prepared_without_a_difference(self, outs: int, width: int) -> None:
        assert prepare(outs, width).outs == outs

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda x, w, o: (x.float(), w, o), "bfloat16"),
            (lambda x, w, o: (x, w.t().contiguous().t(), o), "contiguous"),
            (lambda x, w, o: (x, w, o[:1]), "shape"),
            (lambda x, w, o: (x[:, :12].contiguous(), w[:, :12].contiguous(), o), "multiples of 8"),
        ],
    )
    def test_what_is_not_served_is_refused(self, change: Any, reason: str) -> None:
        with pytest.raises(LinearUnsupported, match=reason):
            linear(*change(*tensors(4, 64, 64)))


class Elsewhere:
    """A table that knows no device: rules in chunks."""

    def choose(self, outs: int, width: int, device: str, library: int | None) -> Any:
        return by_rule(outs, width, 35)
