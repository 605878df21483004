"""Whole-model agreement on the GPU here: a full forward against prefill and token-wise decode, ragged, in bfloat16.

    python tests/kernels/models/on_device.py [MODEL ...] [--kernels library] [--attention triton] [--out FILE]

Models have few layers at full width and random weights. One line for each; everything as JSON in FILE. The library
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
from kernelbraid.kernels.runtime import ran, reset_ran

WIDTHS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {
        "model_type": "qwen2", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
        "intermediate_size": 8960, "num_hidden_layers": 4,
    },
    "qwen2_small": {
        "model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "num_hidden_layers": 4,
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 9728, "num_hidden_layers": 4,
    },
    "llama": {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 14336, "num_hidden_layers": 3, "rms_norm_eps": 1e-5,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_hidden_layers": 2,
    },
}  # fmt: skip
LENGTHS, PROMPTS = (301, 128, 1, 257), (128, 97, 0, 64)
SHORT_PROMPTS, SEVERAL = (65, 1, 0, 127), 37
"""The same sequences from other prompts, several tokens at a time: a verified draft, or a cached prefix."""


def build(name: str, vocabulary: int, **changed: Any) -> Any:
    """The model with random weights, on the GPU."""
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": 4096} | dict(WIDTHS[name]) | changed
    config = transformers.AutoConfig.for_model(**sizes)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def unified(name: str, arguments: argparse.Namespace) -> Any:
    """The model as the arguments want it."""
    model = build(name, arguments.vocabulary)
    if arguments.experts and hasattr(model.config, "num_experts"):
        model.set_experts_implementation(arguments.experts)
    return unify(model, arguments.kernels, arguments.attention)


def agreement(name: str, arguments: argparse.Namespace) -> Mapping[str, object]:
    """What agreed, and which of our operators ran."""
    model = unified(name, arguments)
    ids = torch.randint(0, arguments.vocabulary, (len(LENGTHS), max(LENGTHS)), device="cuda")
    reset_ran()
    started = time.perf_counter()
    found = logits_agree(model, ids, LENGTHS, PROMPTS, arguments.graph)
    several = logits_agree(model, ids, LENGTHS, SHORT_PROMPTS, more=SEVERAL)
    sampled = rollout_differences(model, arguments.vocabulary, arguments.graph)
    seconds = time.perf_counter() - started
    operators = [f"{each.operator}/{each.symbol}: {each.kind} {each.digest[:8]} x{each.calls}" for each in ran()]
    if found.differing_rows and arguments.trace:
        print("first to differ:", first_differing_module(model, ids[:, :301], 301, 96), flush=True)
    more: dict[str, object] = {f"rows differing at {SEVERAL} a time": several.differing_rows, "sampled": sampled}
    if arguments.compile:
        more["compiled"] = compiled_differences(name, arguments, ids)
    if arguments.gradients:
        more["least alike gradient"] = least_alike_gradient(name, arguments)
    return {"model": name, **asdict(found), **more, "seconds": round(seconds, 2), "operators": operators}


def rollout_differences(model: Any, vocabulary: int, graph: bool) -> str:
    """How many sampled log-probabilities differ in a bit from those of the finished sequences, in one whole forward."""
    prompts, lengths = torch.randint(0, vocabulary, (8, 40), device="cuda"), torch.tensor([40, 1, 17, 33, 39, 2, 8, 25])
    decoder = Decoder(model, 8, 80)
    if graph:
        decoder.capture()
    rollout = sample(decoder, prompts, lengths.cuda(), new=40)
    with torch.no_grad():
        again = token_log_probabilities(model, finished(prompts, lengths.cuda(), rollout))
    place = lengths.cuda()[:, None] - 1 + torch.arange(40, device="cuda")
    found = again.gather(1, place).view(torch.int32) != rollout.log_probabilities.view(torch.int32)
    return f"{int(found.sum())} of {found.numel()} differ"


def least_alike_gradient(name: str, arguments: argparse.Namespace) -> str:
    """The parameter whose gradient is least like the stock model's, by the cosine between the two."""
    ids = torch.randint(0, arguments.vocabulary, (2, 200), device="cuda")

    def gradients(model: Any) -> dict[str, torch.Tensor]:
        model.train()
        model.gradient_checkpointing_enable()
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        return {key: value.grad.float() for key, value in model.named_parameters()}

    stock = gradients(build(name, arguments.vocabulary))
    ours = gradients(unify(build(name, arguments.vocabulary), arguments.kernels, arguments.attention))
    alike = {
        key: float(torch.nn.functional.cosine_similarity(ours[key].flatten(), stock[key].flatten(), dim=0))
        for key in stock
    }
    worst = min(alike, key=alike.__getitem__)
    return f"{worst} {alike[worst]:.5f}"


def compiled_differences(name: str, arguments: argparse.Namespace, ids: torch.Tensor) -> str:
    """How many logits of a compiled forward differ in a bit from those of an eager one, by one layer."""
    model = unify(build(name, arguments.vocabulary, num_hidden_layers=1), arguments.kernels, arguments.attention)
    with torch.no_grad():
        eager = model(input_ids=ids, use_cache=False).logits
        torch._dynamo.reset()
        compiled = torch.compile(model)(input_ids=ids, use_cache=False).logits
    return f"{int((eager.view(torch.int16) != compiled.view(torch.int16)).sum())} of {eager.numel()} differ"


def main() -> int:
    """Print a line for each model; 1 when one differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(WIDTHS))
    parser.add_argument("--kernels", default="library", choices=["library", "unified"])
    parser.add_argument("--attention", default=None, choices=["flash_attn_4", "triton"])
    parser.add_argument("--experts", default=None, help="transformers' implementation of the experts")
    parser.add_argument("--graph", action="store_true", help="replay a CUDA graph for each decoded token")
    parser.add_argument("--compile", action="store_true", help="compare a compiled forward's bits with an eager one's")
    parser.add_argument("--gradients", action="store_true", help="compare gradients with the stock model's")
    parser.add_argument("--trace", action="store_true", help="name the module that differs first")
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
    return int(any(result.get("differing_rows", 1) for result in results))


if __name__ == "__main__":
    sys.exit(main())
