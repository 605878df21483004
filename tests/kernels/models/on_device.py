"""Whole-model agreement on the GPU here: a full forward against prefill and token-wise decode, ragged, in bfloat16.

    python tests/kernels/models/on_device.py [MODEL ...] [--kernels library] [--attention triton] [--out FILE]

Models have their own width, few layers and random weights. One line for each; everything as JSON in FILE. The library
composition wants its variables exported first; it says which.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from kernelbraid.kernels import unify
from kernelbraid.kernels.models.agreement import first_differing_module, logits_agree
from kernelbraid.kernels.models.decoding import Decoder
from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.models.rollout import finished, sample
from kernelbraid.kernels.models.scoring import token_log_probabilities
from kernelbraid.kernels.models.widths import WIDTHS, Sizes
from kernelbraid.kernels.runtime import ran, reset_ran

SIZES: Mapping[str, Sizes] = {
    **WIDTHS,
    "Qwen2.5-0.5B": {
        "model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "rms_norm_eps": 1e-6,
    },
}  # fmt: skip
MODELS = ("Qwen3-4B", "Qwen2.5-1.5B", "Qwen2.5-0.5B", "Llama-3.1-8B", "Qwen3-30B-A3B")
DEVICE = "cuda"
LENGTHS, PROMPTS = (301, 128, 1, 257), (128, 97, 0, 64)
SHORT_PROMPTS, SEVERAL = (65, 1, 0, 127), 37
"""The same sequences from other prompts, several tokens at a time: a verified draft, or a cached prefix."""


def build(name: str, arguments: argparse.Namespace, layers: int | None = None) -> Any:
    """The model with random weights and the arguments' layers and vocabulary, on the GPU."""
    torch.manual_seed(0)
    sizes = {"vocab_size": arguments.vocabulary, "num_hidden_layers": layers or arguments.layers}
    config = transformers.AutoConfig.for_model(**SIZES[name], **sizes, max_position_embeddings=4096)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def unified(name: str, arguments: argparse.Namespace) -> Any:
    """The model as the arguments want it."""
    model = build(name, arguments)
    if arguments.experts and hasattr(model.config, "num_experts"):
        model.set_experts_implementation(arguments.experts)
    return unify(model, arguments.kernels, arguments.attention)


def agreement(name: str, arguments: argparse.Namespace) -> Mapping[str, object]:
    """What agreed, and which of our operators ran."""
    model = unified(name, arguments)
    ids = torch.randint(0, arguments.vocabulary, (len(LENGTHS), max(LENGTHS)), device=DEVICE)
    reset_ran()
    started = time.perf_counter()
    found = logits_agree(model, ids, LENGTHS, PROMPTS, arguments.graph)
    several = logits_agree(model, ids, LENGTHS, SHORT_PROMPTS, more=SEVERAL)
    sampled = rollout_differences(model, arguments.vocabulary, arguments.graph)
    seconds = time.perf_counter() - started
    operators = [f"{each.operator}/{each.symbol}: {each.kind} {each.digest[:8]} x{each.calls}" for each in ran()]
    if found.differing_rows and arguments.trace:
        print("first to differ:", first_differing_module(model, ids[:, :301], 301, 96), flush=True)
    more: dict[str, object] = {"rows_differing_several_at_a_time": several.differing_rows, "sampled": sampled}
    if arguments.compile:
        more["compiled"] = compiled_differences(name, arguments, ids)
    if arguments.gradients:
        more["least alike gradient"] = least_alike_gradient(name, arguments)
    return {"model": name, **asdict(found), **more, "seconds": round(seconds, 2), "operators": operators}


def rollout_differences(model: Any, vocabulary: int, graph: bool) -> str:
    """How many sampled log-probabilities differ in a bit from those of the finished sequences, in one whole forward."""
    prompts = torch.randint(0, vocabulary, (8, 40), device=DEVICE)
    lengths = torch.tensor([40, 1, 17, 33, 39, 2, 8, 25], device=DEVICE)
    decoder = Decoder(model, 8, 80)
    if graph:
        decoder.capture()
    rollout = sample(decoder, prompts, lengths, new=40)
    with torch.no_grad():
        again = token_log_probabilities(model, finished(prompts, lengths, rollout))
    place = lengths[:, None] - 1 + torch.arange(40, device=DEVICE)
    found = again.gather(1, place).view(torch.int32) != rollout.log_probabilities.view(torch.int32)
    return f"{int(found.sum())} of {found.numel()} differ"


def least_alike_gradient(name: str, arguments: argparse.Namespace) -> str:
    """The parameter whose gradient is least like the stock model's, by the cosine between the two."""
    ids = torch.randint(0, arguments.vocabulary, (2, 200), device=DEVICE)

    def gradients(model: Any) -> dict[str, torch.Tensor]:
        model.train()
        model.gradient_checkpointing_enable()
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        return {key: value.grad.float() for key, value in model.named_parameters()}

    stock = gradients(build(name, arguments))
    ours = gradients(unify(build(name, arguments), arguments.kernels, arguments.attention))
    alike = {
        key: float(torch.nn.functional.cosine_similarity(ours[key].flatten(), stock[key].flatten(), dim=0))
        for key in stock
    }
    worst = min(alike, key=alike.__getitem__)
    return f"{worst} {alike[worst]:.5f}"


def compiled_differences(name: str, arguments: argparse.Namespace, ids: torch.Tensor) -> str:
    """How many logits of a compiled forward differ in a bit from those of an eager one, by one layer."""
    model = unify(build(name, arguments, layers=1), arguments.kernels, arguments.attention)
    with torch.no_grad():
        eager = model(input_ids=ids, use_cache=False).logits
        torch._dynamo.reset()
        compiled = torch.compile(model)(input_ids=ids, use_cache=False).logits
    return f"{int((eager.view(torch.int16) != compiled.view(torch.int16)).sum())} of {eager.numel()} differ"


def main() -> int:
    """Print a line for each model; 1 when one differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(SIZES))
    parser.add_argument("--kernels", default="library", choices=["library", "unified"])
    parser.add_argument("--attention", default=None, choices=["flash_attn_4", "triton"])
    parser.add_argument("--experts", default=None, help="transformers' implementation of the experts")
    parser.add_argument("--graph", action="store_true", help="replay a CUDA graph for each decoded token")
    parser.add_argument("--compile", action="store_true", help="compare a compiled forward's bits with an eager one's")
    parser.add_argument("--gradients", action="store_true", help="compare gradients with the stock model's")
    parser.add_argument("--trace", action="store_true", help="name the module that differs first")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    results = []
    for name in arguments.models:
        try:
            results.append(agreement(name, arguments))
        except (Refusal, RuntimeError, ValueError, TypeError) as failure:
            traceback.print_exc()
            results.append({"model": name, "failed": f"{type(failure).__name__}: {failure}"})
        print(" ".join(f"{key}={value}" for key, value in results[-1].items()), flush=True)
        torch.cuda.empty_cache()
    if arguments.out:
        environment = {name: os.environ.get(name) for name in ("TORCH_BLAS_PREFER_CUBLASLT", "CUBLAS_WORKSPACE_CONFIG")}
        record = {"arguments": vars(arguments) | {"out": None}, "torch": torch.__version__, "results": results}
        arguments.out.write_text(json.dumps(record | {"environment": environment}, indent=1))
    return int(not all(agrees(result) for result in results))


def agrees(result: Mapping[str, object]) -> bool:
    """No row and no sampled log-probability differs."""
    rows = (result.get("differing_rows"), result.get("rows_differing_several_at_a_time"))
    return rows == (0, 0) and str(result["sampled"]).startswith("0 of")


if __name__ == "__main__":
    sys.exit(main())
