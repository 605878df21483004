"""Every word that the host code and the kernels of a Triton candidate may use; whatever is not here is refused.

A name is listed by where it is defined, whatever the source calls it: `tl.load` is `triton.language.load`.
"""

from types import MappingProxyType

GLUON = "triton.experimental.gluon"
GL = f"{GLUON}.language"
AMPERE, HOPPER = f"{GL}.nvidia.ampere", f"{GL}.nvidia.hopper"
MODULES = frozenset(
    {
        *("math", "torch", "triton"),
        *("triton.language", "triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"),
        *(GLUON, GL, AMPERE, HOPPER, f"{AMPERE}.async_copy", f"{HOPPER}.async_copy"),
        *(f"{HOPPER}.mbarrier", f"{HOPPER}.tma"),
    }
)
"""What may be imported as a module, beside the candidate's own files and the libraries an operator allows."""

BUILTINS = frozenset(
    {
        *("abs", "bool", "dict", "divmod", "enumerate", "float", "int", "len", "list", "max", "min"),
        *("range", "reversed", "round", "sorted", "sum", "tuple", "zip"),
    }
)
EXCEPTIONS = frozenset({"AssertionError", "NotImplementedError", "RuntimeError", "TypeError", "ValueError"})
"""What may be raised; nothing may be caught."""

_DTYPES = {
    *("bfloat16", "bool", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
MAKERS = frozenset(f"torch.{name}" for name in ("empty", "empty_like", "empty_strided", "zeros", "zeros_like"))
"""What makes a workspace. Its contents are the allocator's leftovers or zeros: no arithmetic."""
MAKER_KEYWORDS = frozenset({"dtype", "device"})

DESCRIPTORS = ("triton.tools.tensor_descriptor.TensorDescriptor", f"{GLUON}.nvidia.hopper.TensorDescriptor")
CONSTEXPR = ("triton.language.constexpr", f"{GL}.constexpr")
_MATH = {
    *("acos", "asin", "atan", "ceil", "cos", "exp", "exp2", "fabs", "floor", "fmod", "gcd", "isinf", "isnan", "isqrt"),
    *("lcm", "log", "log1p", "log2", "prod", "sin", "sqrt", "tan", "tanh", "trunc"),
}
VALUES = frozenset({*(f"torch.{name}" for name in _DTYPES), "math.e", "math.inf", "math.nan", "math.pi"})
CALLS = frozenset(
    {
        *(f"math.{name}" for name in _MATH),
        "torch.device",
        "torch.cuda.current_device",
        "torch.cuda.get_device_capability",
        "torch.cuda.get_device_properties",
        "triton.cdiv",
        "triton.next_power_of_2",
        "triton.set_allocator",
        *DESCRIPTORS,
        *(f"{descriptor}.from_tensor" for descriptor in DESCRIPTORS),
    }
)
"""Facts: nothing here starts work on the device, keeps anything or reaches outside."""
HOST = VALUES | CALLS
TYPES = frozenset({"torch.Tensor", "torch.dtype", "torch.device", *CONSTEXPR, *DESCRIPTORS})
"""What may stand in an annotation."""
TYPE_BUILTINS = frozenset({"bool", "dict", "float", "int", "list", "str", "tuple"})

_TL_TYPES = {
    *("bfloat16", "const", "constexpr", "dtype", "float16", "float32", "float64", "float8e4nv", "float8e5"),
    *("int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("tensor", "tensor_descriptor"),
}
_TL_MATH = {
    *("abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2"),
    *("rsqrt", "sin", "sqrt", "sqrt_rn", "umulhi"),
}
_TL_MORE_MATH = {"clamp", "maximum", "minimum", "sigmoid", "softmax"}
_TL_TENSORS = {
    *("add", "arange", "argmax", "argmin", "assume", "associative_scan", "broadcast", "broadcast_to", "cast", "cat"),
    *("cdiv", "condition", "cumprod", "cumsum", "dot", "dot_scaled", "expand_dims", "flip", "full", "gather"),
    *("histogram", "interleave", "join", "max", "max_constancy", "max_contiguous", "min", "mul", "multiple_of"),
    *("permute", "range", "ravel", "reduce", "reduce_or", "reshape", "sort", "split", "static_assert"),
    *("static_range", "sum", "swizzle2d", "sub", "topk", "trans", "tuple", "view", "where", "xor_sum"),
    *("zeros", "zeros_like"),
}
_TL_MEMORY = {
    *("advance", "debug_barrier", "load", "load_tensor_descriptor", "make_block_ptr", "make_tensor_descriptor"),
    *("num_programs", "program_id", "store", "store_tensor_descriptor"),
    *(f"atomic_{name}" for name in ("add", "and", "cas", "max", "min", "or", "xchg", "xor")),
}
INLINE_ASSEMBLY = frozenset({"triton.language.inline_asm_elementwise", f"{GL}.inline_asm_elementwise"})
_GL_LAYOUTS = {
    *("AutoLayout", "BlockedLayout", "CoalescedLayout", "DistributedLinearLayout", "DotOperandLayout"),
    *("NVMMADistributedLayout", "NVMMASharedLayout", "NVMMASharedLayout.get_default_for", "PaddedSharedLayout"),
    *("SharedLinearLayout", "SliceLayout", "SwizzledSharedLayout"),
}
_GL_TYPES = {
    *("bfloat16", "constexpr", "dtype", "float16", "float32", "float64", "float8e4nv", "float8e5", "int1", "int8"),
    *("int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "tensor", "shared_memory_descriptor"),
}
_GL_WORK = {
    *("abs", "add", "arange", "associative_scan", "assume", "broadcast", "cast", "cdiv", "ceil", "cos", "div_rn"),
    *("dot_fma", "erf", "exp", "exp2", "expand_dims", "fdiv", "floor", "fma", "full", "full_like", "gather"),
    *("histogram", "join", "log", "log2", "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum"),
    *("mul", "multiple_of", "num_ctas", "num_programs", "num_warps", "permute", "program_id", "ravel", "reduce"),
    *("reduce_or", "reshape", "rsqrt", "set_auto_layout", "sin", "split", "sqrt", "sqrt_rn", "static_assert"),
    *("static_range", "sub", "sum", "to_linear_layout", "tuple", "umulhi", "where", "xor_sum", "zeros", "zeros_like"),
}
_GL_MEMORY = {
    *("allocate_shared_memory", "convert_layout", "load", "store", "thread_barrier", "warp_specialize"),
    *(f"atomic_{name}" for name in ("add", "and", "cas", "max", "min", "or", "xchg", "xor")),
}
_ASYNC_COPY = {"async_copy_global_to_shared", "commit_group", "mbarrier_arrive", "wait_group"}
_HOPPER = {
    *("fence_async_shared", "mma_v2", "warpgroup_mma", "warpgroup_mma_init", "warpgroup_mma_wait"),
    *(f"mbarrier.{name}" for name in ("MBarrierLayout", "arrive", "expect", "init", "invalidate", "wait")),
    *("tma.async_copy_global_to_shared", "tma.async_copy_shared_to_global", "tma.make_tensor_descriptor"),
    *("tma.store_wait", "tma.tensor_descriptor"),
}
_LIBDEVICE = {
    *("abs", "ceil", "clz", "copysign", "cos", "erf", "erfc", "exp", "exp2", "expm1", "fast_dividef", "fast_expf"),
    *("fast_exp10f", "fast_log2f", "fast_logf", "fast_powf", "ffs", "floor"),
    *("fma", "fma_rn", "fma_rz", "fma_ru", "fma_rd", "fmod", "isinf", "isnan", "llrint", "log", "log1p", "log2"),
    *("mul_rn", "mulhi", "nearbyint", "popc", "pow", "rcp_rn", "rint", "round", "rsqrt", "rsqrt_rn"),
    *("saturatef", "sin", "sqrt", "sqrt_rn", "tanh", "trunc", "add_rn", "sub_rn", "div_rn", "byte_perm"),
}
DEVICE = frozenset(
    {
        *(f"triton.language.{name}" for name in _TL_TYPES | _TL_MATH | _TL_MORE_MATH | _TL_TENSORS | _TL_MEMORY),
        *(f"triton.language.math.{name}" for name in _TL_MATH),
        *(f"triton.language.extra.{place}libdevice.{name}" for place in ("", "cuda.") for name in _LIBDEVICE),
        *(f"triton.language.extra.cuda.{name}" for name in ("gdc_launch_dependents", "gdc_wait")),
        *INLINE_ASSEMBLY,
        *(f"{GL}.{name}" for name in _GL_LAYOUTS | _GL_TYPES | _GL_WORK | _GL_MEMORY),
        *(f"{HOPPER}.{name}" for name in _HOPPER),
        f"{AMPERE}.mma_v2",
        *(f"{place}.async_copy.{name}" for place in (AMPERE, HOPPER) for name in _ASYNC_COPY),
    }
)
"""The language of a kernel, without printing, clocks, random numbers, pointers made of integers and foreign code."""

VIEWS = frozenset(
    {
        *("T", "expand", "mT", "narrow", "permute", "select", "squeeze", "t", "transpose", "unflatten", "unsqueeze"),
        "view",
    }
)
"""Attributes of a host tensor that give a tensor over the same memory, and never a copy."""
WHY_NOT = MappingProxyType(
    {
        "data_ptr": "results may not depend on an address, and Triton looks at the alignment by itself",
        "contiguous": "it may copy; what an entry is given is contiguous, and a kernel can take strides",
        "reshape": "it may copy; write view",
        "flatten": "it may copy; write view",
    }
)
"""Why some attributes of a tensor are refused; the others compute, wait or reach into its storage."""
FACTS = frozenset(
    {
        *("device", "dim", "dtype", "element_size", "index", "is_contiguous", "is_cuda", "itemsize", "ndim"),
        *("numel", "shape", "size", "storage_offset", "stride"),
        *("bit_length", "get", "items", "keys", "values", "major", "minor", "multi_processor_count"),
    }
)
"""Attributes that say something of a tensor, a number, a table or the device; an address is not among them."""
MEMBERS = frozenset(
    {
        *("T", "dtype", "element_ty", "load", "primitive_bitwidth", "scalar", "shape", "store", "to", "type", "value"),
        *("block_shape", "strides", "is_floating", "is_bf16", "is_fp16", "is_fp32", "numel", "logical_and"),
        "logical_or",
        *_TL_MATH,
        *_TL_MORE_MATH,
        *_TL_TENSORS,
        *("advance", "gather", "scatter", "atomic_add", "atomic_max", "atomic_min"),
        *("index", "layout", "rank", "slice"),
    }
)
"""Attributes of a value inside a kernel."""

KERNEL_DECORATORS = frozenset({"triton.jit", f"{GLUON}.jit"})
DECORATORS = KERNEL_DECORATORS | {"triton.constexpr_function"}
JIT_KEYWORDS = frozenset({"noinline", "do_not_specialize", "do_not_specialize_on_alignment"})
LAUNCH_OPTIONS = frozenset(
    {
        *("enable_fp_fusion", "launch_cooperative_grid", "launch_pdl", "maxnreg", "num_ctas", "num_stages"),
        "num_warps",
    }
)
"""Options of a launch beside the kernel's own arguments."""
REFUSED_KEYWORDS = frozenset(
    {
        *("allowed_dot_input_precisions", "arch", "backend_name", "debug", "default_dot_input_precision"),
        *("deprecated_fp8_dot_operand_dtypes", "enable_reflect_ftz", "extern_libs", "instrumentation_mode"),
        *("ir_override", "max_num_imprecise_acc_default"),
        *("launch_metadata", "post_hook", "pre_hook", "ptx_options", "ptx_version", "sanitize_overflow", "stream"),
        *("supported_fp8_dtypes", "warmup", "warp_size", "out", "pin_memory"),
    }
)
"""Launch options that reach past the kernel: files, flags of the assembler, callbacks."""

PTX = frozenset(
    {
        *("abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "copysign", "cos", "cvt", "div", "ex2"),
        *("fma", "fns", "lg2", "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or"),
        *("popc", "prmt", "rcp", "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl", "shr", "sin", "slct"),
        *("sqrt", "sub", "tanh", "testp", "xor", "dp4a", "dp2a", "nanosleep"),
    }
)
"""Instructions of inline assembly: arithmetic on registers, nothing that reads memory, clocks or positions."""

WHY = MappingProxyType(
    {
        "torch.nn": "a library must do no work that the candidate claims",
        "torch.ops": "a library must do no work that the candidate claims",
        "torch.cuda.synchronize": "an entry only launches; whoever measures waits",
        "torch.cuda.Stream": "work on another stream ends after the clock stopped",
        "torch.cuda.stream": "work on another stream ends after the clock stopped",
        "torch.cuda.Event": "a candidate has no use for a clock",
        "torch.cuda.graph": "an entry is captured by whoever measures",
        "triton.autotune": "a choice made while running differs from process to process; write the configuration down",
        "triton.heuristics": "compute the value in the entry and pass it as an argument",
        "triton.language.device_print": "a kernel has nobody to talk to",
        "triton.language.static_print": "a kernel has nobody to talk to",
        "triton.language.pointer_type": "an address made of an integer reaches memory that is no argument",
        f"{GL}.device_print": "a kernel has nobody to talk to",
        f"{GL}.static_print": "a kernel has nobody to talk to",
        f"{GL}.pointer_type": "an address made of an integer reaches memory that is no argument",
        "triton.language.extra.cuda.globaltimer": "a kernel that knows the time can act on it",
    }
)
"""Why some words are refused; the others are simply not needed."""
