"""Module surgery and attention's cases on small models, with stand-ins for the operators. Bits need a GPU."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from kernelbraid.kernels import unify  # noqa: E402
from kernelbraid.kernels.models import attending  # noqa: E402
from kernelbraid.kernels.models.agreement import first_differing_module, logits_agree  # noqa: E402
from kernelbraid.kernels.models.decoding import Decoder  # noqa: E402
from kernelbraid.kernels.models.refusal import Refusal  # noqa: E402
from kernelbraid.kernels.runtime import ran  # noqa: E402

TYPES = ("qwen2", "qwen3", "qwen3_moe", "llama")
NEAR = 0.02
"""Logits of these models are below 1; bfloat16 has eight bits."""
pytestmark = pytest.mark.usefixtures("standing_in", "starved")

ALIKE = 0.98
"""Cosine between two gradients that were rounded on different ways."""
EVERYWHERE = ("attention", "embedding", "fused_add_rms_norm", "linear", "rms_norm", "rope_store", "silu_and_mul")

Small = Callable[[str], Any]


def logits(model: Any, ids: Any, **more: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=ids, **more).logits.float()


@pytest.fixture
def ids() -> Any:
    return torch.randint(0, 64, (3, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model_type", TYPES)
def test_the_library_composition_computes_what_the_stock_model_does(model_type: str, small: Small, ids: Any) -> None:
    # given
    model = small(model_type)
    stock = logits(model, ids)

    # when
    ours = logits(unify(model, "library", attention="triton"), ids)

    # then
    assert (ours - stock).abs().max() < NEAR
    assert [each.symbol for each in ran()] == ["attention_full_bf16"]


@pytest.mark.parametrize("model_type", TYPES)
def test_the_unified_model_computes_what_the_stock_model_does(model_type: str, small: Small, ids: Any) -> None:
    # given
    model = small(model_type)
    stock = logits(model, ids)
    parameters = {name: value.clone() for name, value in model.state_dict().items()}

    # when
    ours = logits(unify(model), ids)

    # then
    assert (ours - stock).abs().max() < 3 * NEAR
    assert set(EVERYWHERE) <= {each.operator for each in ran()}
    assert model.state_dict().keys() == parameters.keys()
    assert all(torch.equal(value, parameters[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("more", [1, 4])
def test_unified_ragged_decode_follows_the_full_forward(model_type: str, more: int, small: Small, ids: Any) -> None:
    # given
    model = unify(small(model_type))

    # when
    agreement = logits_agree(model, ids, lengths=[20, 13, 1], prompts=[7, 0, 1], more=more)

    # then
    assert agreement.rows == 34
    assert agreement.largest_difference < NEAR
    assert {"kv_cache_store", "rope_store"} <= {each.operator for each in ran()}


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("checkpointed", [True, False])
def test_gradients_are_those_of_the_stock_model(model_type: str, checkpointed: bool, small: Small, ids: Any) -> None:
    # given
    def gradients(model: Any) -> dict[str, Any]:
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        scores = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()).backward()
        return {name: value.grad.float().flatten() for name, value in model.named_parameters()}

    # when
    stock, ours = gradients(small(model_type)), gradients(unify(small(model_type)))

    # then
    assert ours.keys() == stock.keys()
    for name, gradient in stock.items():
        assert torch.nn.functional.cosine_similarity(ours[name], gradient, dim=0) > ALIKE, name


def test_a_moved_weight_is_noticed_and_unify_mends_it(small: Small, ids: Any) -> None:
    # given
    model = unify(small("qwen3"))
    before = logits(model, ids)
    projection = model.model.layers[0].self_attn.k_proj
    projection.weight.data = projection.weight.data.clone()

    # when / then
    with pytest.raises(Refusal, match="call unify"):
        logits(model, ids)
    assert torch.equal(logits(unify(model), ids), before)


@pytest.mark.parametrize("name", ["self_attn.k_proj", "mlp.up_proj"])
def test_a_replaced_layer_is_noticed_and_not_left_out(name: str, small: Small, ids: Any) -> None:
    # given what an adapter does
    model = unify(small("qwen3"))
    parent, _, child = name.partition(".")
    module = getattr(model.model.layers[1], parent)
    setattr(module, child, torch.nn.Sequential(getattr(module, child)))

    # when / then
    with pytest.raises(Refusal, match="replaced after unify"):
        logits(model, ids)


def test_another_attention_is_noticed(small: Small, ids: Any) -> None:
    # given
    model = unify(small("qwen3"))
    model.set_attn_implementation("sdpa")

    # when / then
    with pytest.raises(Refusal, match="set to sdpa after unify"):
        logits(model, ids)


def test_a_step_of_training_is_seen_by_the_next_forward(small: Small, ids: Any) -> None:
    # given weights that an optimiser changes in place
    model = unify(small("qwen3"))
    before = logits(model, ids)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)

    # when
    optimiser.step()

    # then
    assert not torch.equal(logits(model, ids), before)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("hidden_act", "gelu", "gelu"), ("rope_parameters", {"rope_type": "dynamic"}, "dynamic")],
)
def test_what_the_operators_do_not_compute_is_refused(key: str, value: object, said: str, small: Small) -> None:
    # given
    model = small("qwen3")
    setattr(model.config, key, value)

    # when / then
    with pytest.raises(Refusal, match=said):
        unify(model)


@pytest.mark.parametrize("model_type", TYPES)
def test_ragged_decode_follows_the_full_forward(model_type: str, small: Small, ids: Any) -> None:
    # given
    model = unify(small(model_type), "library", attention="triton")

    # when prompts of 7, 0 and 1 tokens are prefilled
    agreement = logits_agree(model, ids, lengths=[20, 13, 1], prompts=[7, 0, 1])

    # then
    assert agreement.rows == 34
    assert agreement.largest_difference < NEAR
    assert "attention_decode_bf16" in [each.symbol for each in ran()]


def test_the_module_that_differs_first_is_named(small: Small, ids: Any) -> None:
    # given a projection that looks at the number of rows
    model = unify(small("qwen3"))
    projection = model.model.layers[1].mlp.down_proj
    forward = projection.forward
    projection.forward = lambda x: forward(x) + (x.shape[1] == 1)

    # when
    found = first_differing_module(model, ids, length=20, prompt=7)

    # then
    assert found is not None
    assert found[:2] == ("model.layers.1.mlp.down_proj", 7)


def test_padding_on_the_left_changes_nothing(small: Small, ids: Any) -> None:
    # given
    model = unify(small("qwen3"), "library", attention="triton")
    mask = torch.ones_like(ids)
    mask[0, :5] = 0

    # when
    padded = logits(model, ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))

    # then
    assert (padded[0, 5:] - logits(model, ids[:1, 5:])[0]).abs().max() < NEAR


def test_a_padded_batch_is_laid_together_once_for_all_layers(
    small: Small, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    waits: list[int] = []
    lay = attending._laid_together
    monkeypatch.setattr(attending, "_laid_together", lambda *given: waits.append(1) or lay(*given))
    model = unify(small("qwen3"))
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0

    # when
    padded = logits(model, ids, attention_mask=mask)

    # then
    assert len(waits) == 1
    assert (padded[1, :13] - logits(model, ids[1:2, :13])[0]).abs().max() < NEAR


def test_packed_sequences_do_not_see_each_other(small: Small, ids: Any) -> None:
    # given
    model = unify(small("qwen3"), "library", attention="triton")
    packed, position = ids[:2].reshape(1, -1), torch.arange(20).repeat(2)[None]
    starts = torch.tensor([0, 20, 40], dtype=torch.int32)

    # when
    both = logits(
        *(model, packed), position_ids=position, cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=20,
        max_length_k=20, use_cache=False,
    )  # fmt: skip

    # then
    assert (both.view(2, 20, -1) - logits(model, ids[:2])).abs().max() < NEAR


def test_sequences_packed_by_position_alone_are_refused(small: Small, ids: Any) -> None:
    # given
    model = unify(small("qwen3"), "library", attention="triton")

    # when / then
    with pytest.raises(Refusal, match="cu_seq_lens_q"):
        logits(model, ids.reshape(1, -1), position_ids=torch.arange(20).repeat(3)[None], use_cache=False)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_traced_model_computes_the_same_bits(model_type: str, small: Small, ids: Any) -> None:
    # given
    model = unify(small(model_type))
    eager = logits(model, ids, use_cache=False)

    # when
    traced = logits(torch.compile(model, backend="aot_eager", fullgraph=True), ids, use_cache=False)

    # then
    assert torch.equal(traced, eager)


def test_a_traced_model_does_not_take_sequences_packed_by_position_alone(small: Small, ids: Any) -> None:
    # given
    traced = torch.compile(unify(small("qwen3")), backend="aot_eager", fullgraph=True)

    # when / then
    with pytest.raises(RuntimeError, match="restart inside a row"):
        logits(traced, ids.reshape(1, -1), position_ids=torch.arange(20).repeat(3)[None], use_cache=False)


def test_generating_with_transformers_own_cache_works(small: Small, ids: Any) -> None:
    # given
    model = small("qwen3")
    stock = model.generate(ids[:1], max_new_tokens=4, do_sample=False)

    # when
    ours = unify(model, "library", attention="triton").generate(ids[:1], max_new_tokens=4, do_sample=False)

    # then
    assert ours.tolist() == stock.tolist()


def test_a_static_cache_of_transformers_is_refused(small: Small, ids: Any) -> None:
    # given
    model = unify(small("qwen3"), "library", attention="triton")

    # when / then
    with pytest.raises(Refusal, match="Decoder"):
        model.generate(ids[:1], max_new_tokens=4, do_sample=False, cache_implementation="static")


def test_the_cache_refuses_what_does_not_fit(small: Small, ids: Any) -> None:
    # given
    decoder = Decoder(unify(small("qwen3"), "library", attention="triton"), batch=3, capacity=20)
    decoder.prefill(ids, torch.tensor([20, 4, 1]))

    # when / then
    with pytest.raises(Refusal, match="20 tokens and the cache holds 20"):
        decoder.step(ids[:, 0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model.float(), "bfloat16"),
        (lambda model: setattr(model.config, "model_type", "gpt2"), "gpt2 is not supported"),
        (lambda model: setattr(model.config, "layer_types", ["sliding_attention"]), "use_sliding_window"),
    ],
)
def test_what_cannot_keep_its_bits_is_refused(change: Callable[[Any], object], said: str, small: Small) -> None:
    # given
    model = small("qwen3")
    change(model)

    # when / then
    with pytest.raises(Refusal, match=said):
        unify(model, "library", attention="triton")


def test_a_model_is_not_composed_of_both(small: Small) -> None:
    # given
    model = unify(small("qwen3"))

    # when / then
    with pytest.raises(Refusal, match="load it anew"):
        unify(model, "library", attention="triton")


def test_a_stock_model_does_not_decode_over_a_cache_that_it_cannot_read(small: Small) -> None:
    with pytest.raises(Refusal, match="call unify"):
        Decoder(small("qwen3"), batch=1, capacity=8)
