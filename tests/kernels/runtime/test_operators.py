"""What surrounds an operator: its schema and shapes under tracing, its gradients, and what it refuses to take."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernelbraid.kernels.runtime import ran, tensors  # noqa: E402
from kernelbraid.kernels.runtime.activation import silu_and_mul  # noqa: E402
from kernelbraid.kernels.runtime.attention import attention, attention_decode  # noqa: E402
from kernelbraid.kernels.runtime.cache import kv_cache_store  # noqa: E402
from kernelbraid.kernels.runtime.embedding import embedding  # noqa: E402
from kernelbraid.kernels.runtime.heads import heads, heads_stored  # noqa: E402
from kernelbraid.kernels.runtime.log_probabilities import log_softmax_gather  # noqa: E402
from kernelbraid.kernels.runtime.norms import fused_add_rms_norm, qk_norm, rms_norm  # noqa: E402
from kernelbraid.kernels.runtime.projection import linear  # noqa: E402
from kernelbraid.kernels.runtime.registering import call  # noqa: E402
from kernelbraid.kernels.runtime.rotary import rope, table  # noqa: E402
from kernelbraid.kernels.runtime.routing import moe_align, moe_combine, moe_linear, topk_softmax  # noqa: E402

pytestmark = pytest.mark.usefixtures("standing_in")
EXPERTS = torch.zeros(3, dtype=torch.int32)
CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration")


def drawn(*shape: int, seed: int = 0) -> Any:
    """Normal values in bfloat16 that want a gradient."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return values.bfloat16().requires_grad_()


def starts(*lengths: int) -> Any:
    return torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)


def laid_out(ids: Any) -> tuple[Any, Any]:
    """In blocks of 64: one for each of experts 0, 1 and 2, and others that nobody needs."""
    order, block_expert = torch.full((4, 64), 6, dtype=torch.int32), torch.full((4,), -1, dtype=torch.int32)
    for expert in range(3):
        slots = (ids.flatten() == expert).nonzero()[:, 0]
        order[expert, : len(slots)], block_expert[expert] = slots.int(), expert
    return order, block_expert


def arguments() -> Mapping[str, tuple[Any, ...]]:
    """One call of each operator."""
    both = (drawn(5, 4, 64), drawn(5, 2, 64))
    cache = [torch.zeros(6, 7, 2, 64).bfloat16() for _ in range(2)]
    slots = torch.tensor([3, -1, 0, 1, 2])
    flat, turned = [each.flatten(0, 1) for each in cache], (torch.tensor([0, 1, 7, 2, 3]), table(torch.rand(32), 8))
    ids = torch.tensor([[0, 2], [2, 1], [0, 1]], dtype=torch.int32)
    return {
        "rms_norm": (drawn(5, 64), drawn(64), 1e-5),
        "fused_add_rms_norm": (drawn(5, 64), drawn(5, 64, seed=1), drawn(64), 1e-6),
        "qk_norm": (*both, drawn(64), drawn(64, seed=1), 1e-6),
        "rope": (*both, *turned),
        "heads": (drawn(5, 8 * 64), 4, *turned, drawn(64), drawn(64, seed=1), 1e-6),
        "heads_stored": (drawn(5, 8 * 64).detach(), 4, *turned, None, None, 0.0, slots, *flat),
        "silu_and_mul": (drawn(5, 32),),
        "linear": (drawn(5, 64), drawn(48, 64), drawn(48)),
        "embedding": (torch.tensor([3, 0, 3]), drawn(4, 64)),
        "kv_cache_store": (
            drawn(5, 2, 64).detach(),
            drawn(5, 2, 64).detach(),
            slots,
            *flat,
        ),
        "attention": (drawn(5, 4, 64), drawn(9, 2, 64), drawn(9, 2, 64), starts(2, 3), starts(5, 4), 3, 5),
        "attention_decode": (
            drawn(3, 2, 4, 64).detach(),
            *cache,
            torch.tensor([[1, 5], [0, 2], [3, 4]], dtype=torch.int32),
            torch.tensor([9, 2, 14], dtype=torch.int32),
        ),
        "topk_softmax": (drawn(5, 8), 3, True),
        "moe_align": (ids, 4, 64),
        "moe_linear": (drawn(3, 32), drawn(4, 48, 32), ids, *laid_out(ids)),
        "moe_combine": (drawn(3, 2, 64), torch.rand(3, 2).requires_grad_()),
        "log_softmax_gather": (drawn(5, 48), torch.tensor([0, 47, -1, 3, 3])),
    }


@pytest.mark.parametrize("name", sorted(arguments()))
def test_schema_shapes_and_autograd_are_registered_as_torch_wants_them(name: str) -> None:
    # when / then
    torch.library.opcheck(getattr(torch.ops.kernelbraid, name), arguments()[name], test_utils=CHECKS)


def formula_norm(x: Any, weight: Any, epsilon: float = 1e-6) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def formula_rope(q: Any, k: Any, positions: Any, cos_sin: Any) -> tuple[Any, ...]:
    cos, sin = cos_sin[positions][:, None].repeat(1, 1, 2).chunk(2, -1)
    cos, sin = (part.chunk(2, -1)[0].repeat(1, 1, 2) for part in (cos, sin))

    def turned(heads: Any) -> Any:
        left, right = heads.chunk(2, -1)
        return heads * cos + torch.cat((-right, left), -1) * sin

    cos, sin = (part.repeat(1, 1, 2) for part in cos_sin[positions][:, None].chunk(2, -1))
    return turned(q), turned(k)


def formula_heads(qkv: Any, positions: Any, cos_sin: Any, norms: Any) -> tuple[Any, ...]:
    q, k, v = qkv.unflatten(-1, (8, 64)).split([4, 2, 2], 1)
    if norms:
        q, k = formula_norm(q, norms[0]), formula_norm(k, norms[1])
    return (*formula_rope(q, k, positions, cos_sin), v)


def formula_topk(logits: Any, k: int, of_chosen: bool) -> Any:
    top = torch.sort(logits, stable=True, dim=-1, descending=True).values[:, :k]
    return top.softmax(-1) if of_chosen else (top - logits.logsumexp(-1, keepdim=True)).exp()


FORMULAS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rms_norm": (rms_norm, formula_norm),
    "fused_add_rms_norm": (fused_add_rms_norm, lambda x, r, w, e: (formula_norm(x + r, w, e), x + r)),
    "qk_norm": (qk_norm, lambda q, k, a, b, e: (formula_norm(q, a, e), formula_norm(k, b, e))),
    "rope": (rope, formula_rope),
    "silu_and_mul": (silu_and_mul, lambda g: torch.nn.functional.silu(g[:, :16]) * g[:, 16:]),
    "linear": (linear, lambda x, w, b: x @ w.t() + b),
    "embedding": (embedding, lambda ids, rows: rows[ids]),
    "topk_softmax": (lambda *a: topk_softmax(*a)[0], formula_topk),
    "moe_linear": (moe_linear, lambda x, w, ids, *_: torch.einsum("ri,rjoi->rjo", x, w[ids.long()])),
    "moe_combine": (moe_combine, lambda o, w: (o * w[:, :, None]).sum(1)),
    "log_softmax_gather": (
        log_softmax_gather,
        lambda x, n: (
            x.log_softmax(-1).gather(-1, n.clamp(min=0)[:, None])[:, 0].where(n >= 0, 0.0),
            x.logsumexp(-1),
        ),
    ),
}


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def results_and_gradients(function: Callable[..., Any], given: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Of a weighted sum of all results, so that their gradients differ from one another."""
    results = as_tuple(function(*given))
    weights = [torch.linspace(-1, 1, r.numel(), dtype=torch.float64).view(r.shape) for r in results]
    sum((r.double() * w).sum() for r, w in zip(results, weights, strict=True)).backward()
    return [r.detach().double() for r in results], [
        g.grad.double() for g in given if getattr(g, "requires_grad", False)
    ]


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_results_and_gradients_follow_the_formula(name: str) -> None:
    # given
    ours, formula = FORMULAS[name]
    given = arguments()[name]
    exact = tuple(
        g.detach().double().requires_grad_(g.requires_grad) if torch.is_tensor(g) and g.is_floating_point() else g
        for g in given
    )

    # when
    results, gradients = results_and_gradients(ours, given)
    expected, expected_gradients = results_and_gradients(formula, exact)

    # then
    for mine, theirs in zip(results + gradients, expected + expected_gradients, strict=True):
        assert (mine - theirs).abs().max() <= 0.02 * theirs.abs().max()


@pytest.mark.parametrize("name", ["attention", "fused_add_rms_norm", "heads", "linear", "moe_combine", "topk_softmax"])
def test_past_the_dispatcher_nothing_differs(name: str) -> None:
    # given
    def found(function: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
        torch.manual_seed(0)
        return results_and_gradients(function, arguments()[name])

    # when
    mine, gradients = found(partial(call, name))
    theirs, others = found(getattr(torch.ops.kernelbraid, name))

    # then
    assert gradients
    assert all(torch.equal(one, other) for one, other in zip(mine + gradients, theirs + others, strict=True))


def test_probabilities_of_all_experts_have_the_gradient_of_a_whole_softmax() -> None:
    # given
    logits = drawn(5, 8)
    exact = logits.detach().double().requires_grad_()

    # when
    _, [mine] = results_and_gradients(lambda x: topk_softmax(x, 3, of_chosen=False)[0], (logits,))
    _, [theirs] = results_and_gradients(lambda x: formula_topk(x, 3, False), (exact,))

    # then
    assert (mine - theirs).abs().max() <= 0.02 * theirs.abs().max()


@pytest.mark.parametrize("normed", [True, False])
def test_heads_follow_the_formula_and_so_do_their_gradients(normed: bool) -> None:
    # given
    product, turn = drawn(5, 8 * 64), (torch.tensor([0, 1, 7, 2, 3]), table(torch.rand(32), 8))
    norms = [drawn(64), drawn(64, seed=1)] if normed else []
    exact = [tensor.detach().double().requires_grad_() for tensor in (product, *norms)]

    # when
    mine = results_and_gradients(lambda x, *w: heads(x, 4, *turn, w, 1e-6), (product, *norms))
    theirs = results_and_gradients(lambda x, *w: formula_heads(x, *turn, w), tuple(exact))

    # then
    for one, other in zip(mine[0] + mine[1], theirs[0] + theirs[1], strict=True):
        assert (one - other).abs().max() <= 0.02 * other.abs().max()


def test_keys_and_values_reach_their_slots_and_padding_none() -> None:
    # given
    product = drawn(3, 8 * 64).detach()
    turn, norms = (torch.tensor([0, 1, 7]), table(torch.rand(32), 8)), (drawn(64), drawn(64, seed=1))
    caches = torch.zeros(2, 4, 2, 64).bfloat16()

    # when
    q, k, v = heads(product, 4, *turn, norms)
    stored = heads_stored(product, 4, *turn, torch.tensor([2, -1, 0]), caches[0], caches[1], norms)

    # then
    assert torch.equal(stored, q)
    assert torch.equal(caches[0, [2, 0]], k[[0, 2]])
    assert torch.equal(caches[1, [2, 0]], v[[0, 2]])
    assert not caches[:, [1, 3]].any()


def test_sorted_slots_end_where_the_next_expert_begins() -> None:
    # when
    order, expert, ends = moe_align(torch.tensor([[0, 2], [2, 1], [0, 1]], dtype=torch.int32), 4, 1)

    # then
    assert order.flatten().tolist() == [0, 4, 3, 5, 1, 2]
    assert expert.tolist() == [0, 0, 1, 1, 2, 2]
    assert ends.tolist() == [2, 4, 6, 6]


def test_the_cache_store_leaves_padding_out() -> None:
    # given
    k, v, cache = drawn(2, 1, 64).detach(), drawn(2, 1, 64).detach(), torch.zeros(2, 3, 1, 64).bfloat16()

    # when
    kv_cache_store(k, v, torch.tensor([2, -1]), cache[0], cache[1])

    # then
    assert torch.equal(cache[0, 2], k[0])
    assert torch.equal(cache[1, 2], v[0])
    assert not cache[:, :2].any()


def test_what_ran_is_counted_by_entry_and_says_its_sources() -> None:
    # given
    x, weight = drawn(300, 64), drawn(64)

    # when
    rms_norm(x, weight)
    rms_norm(x[:2], weight)
    rms_norm(x[:3], weight)

    # then
    assert [(each.symbol, each.calls) for each in ran()] == [("rms_norm_decode_bf16", 2), ("rms_norm_full_bf16", 1)]
    assert {len(each.digest) for each in ran()} == {64}


def test_linear_needs_no_bias() -> None:
    # given
    x, weight = drawn(5, 64), drawn(48, 64)

    # when
    linear(x, weight).double().square().sum().backward()

    # then
    exact = weight.detach().double().requires_grad_()
    (x.detach().double() @ exact.t()).square().sum().backward()
    assert (weight.grad - exact.grad).abs().max() <= 0.02 * exact.grad.abs().max()


def ragged() -> tuple[Any, ...]:
    return (drawn(5, 4, 64), drawn(9, 2, 64), drawn(9, 2, 64), starts(2, 3), starts(5, 4), 3, 5)


@pytest.mark.parametrize(
    ("refused", "error", "said"),
    [
        (lambda: rms_norm(drawn(5, 64).float(), drawn(64)), TypeError, r"x in bfloat16, not float32.*x\.to"),
        (lambda: rms_norm(drawn(5, 64), drawn(63)), ValueError, r"weight of shape \[64\], not \[63\]"),
        (lambda: linear(drawn(5, 64), drawn(8, 32)), ValueError, r"weight of shape \[out, 64\]"),
        (lambda: silu_and_mul(drawn(5, 31)), ValueError, "one width each"),
        (lambda: heads(drawn(5, 7 * 64), 4, torch.arange(5), torch.zeros(8, 64)), ValueError, "not a width of 448"),
        (lambda: topk_softmax(drawn(5, 8), 9), ValueError, "not 9"),
        (
            lambda: moe_linear(drawn(3, 24), drawn(4, 48, 24), *(torch.zeros(3, 64, dtype=torch.int32),) * 2, EXPERTS),
            ValueError,
            "multiples of 16",
        ),
        (lambda: embedding(torch.tensor([1], dtype=torch.int32), drawn(4, 64)), TypeError, "ids in int64"),
        (lambda: attention(drawn(5, 4, 72), drawn(5, 2, 72), *ragged()[2:]), ValueError, r"v of shape|head_dim"),
        (lambda: attention(drawn(5, 5, 64), *ragged()[1:]), ValueError, "not 5 to 2"),
        (lambda: attention_decode(drawn(1, 1, 4, 64), *ragged()[1:3], *ragged()[3:5]), ValueError, "pages"),
        (lambda: log_softmax_gather(drawn(5, 8), torch.zeros(4, dtype=torch.int64)), ValueError, "labels"),
    ],
)
def test_what_an_operator_does_not_take_is_said(refused: Callable[[], Any], error: type[Exception], said: str) -> None:
    # when / then
    with pytest.raises(error, match=said):
        refused()


def test_a_tensor_on_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(tensors, "DEVICE", "cuda")

    # when / then
    with pytest.raises(ValueError, match="x is on cpu: move it there"):
        rms_norm(drawn(5, 64), drawn(64))


def test_tracing_sees_shapes_alone() -> None:
    # when
    traced = torch.compile(lambda x, w: rms_norm(x, w) * 2, backend="aot_eager", fullgraph=True)
    x, weight = drawn(5, 64).detach(), drawn(64).detach()

    # then
    assert torch.equal(traced(x, weight), rms_norm(x, weight) * 2)


def test_attention_hands_its_output_and_lengths_to_the_backward() -> None:
    # given
    q, k, v, *rest = ragged()
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]

    # when
    out, _ = attention(q, k, v, *rest)
    out.double().square().sum().backward()

    # then
    total = 0
    for rows, keys in ((slice(0, 2), slice(0, 5)), (slice(2, 5), slice(5, 9))):
        one, two, three = exact[0][rows], *(t[keys].repeat_interleave(2, 1) for t in exact[1:])
        mask = torch.ones(len(one), len(two)).tril(len(two) - len(one)).bool()
        weights = (torch.einsum("qhd,khd->hqk", one, two) / 8).masked_fill(~mask, -torch.inf).softmax(-1)
        total = total + torch.einsum("hqk,khd->qhd", weights, three).square().sum()
    total.backward()
    for mine, other in zip((q, k, v), exact, strict=True):
        assert (mine.grad - other.grad).abs().max() <= 0.03 * other.grad.abs().max()


def test_fake_tensors_launch_nothing_without_a_gradient_either() -> None:
    # given
    from torch._subclasses.fake_tensor import FakeTensorMode

    # when
    with FakeTensorMode() as fake, torch.no_grad():
        x, weight = fake.from_tensor(drawn(5, 64).detach()), fake.from_tensor(drawn(64).detach())
        y = rms_norm(x, weight)

    # then
    assert y.shape == (5, 64)
    assert ran() == ()
