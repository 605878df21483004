"""Tensors without elements: a device has no memory for them, and nothing may be laid to their charge."""

import numpy as np

from kernelbraid.kernels.audit.checks import cases_of
from kernelbraid.kernels.audit.cuda.host import HostDevice
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs
from kernelbraid.kernels.audit.layout import plan_layout
from kernelbraid.kernels.operators.operator import load_operator


def test_shapes_without_elements_are_checked_last() -> None:
    rows = [case.dims["rows"] for case in cases_of(load_operator("rms_norm", "triton"))]
    assert rows.count(0) == 1
    assert rows[-1] == 0


def test_a_write_is_laid_to_the_tensor_that_holds_the_byte() -> None:
    device = HostDevice()
    entry = load_operator("rms_norm", "triton").entry("rms_norm_full_bf16")
    layout = plan_layout(0, [(entry, {"rows": 0, "hidden": 64})])
    inputs = DeviceInputs(device, device.allocate(layout.input_end))
    for place in layout.calls[0].inputs:
        inputs.fill(place, np.zeros(place.shape, place.dtype))
    inputs.upload(layout)

    device.upload(inputs.buffer, 126, np.ones(1, np.uint8))

    assert (written := inputs.first_written(layout)) is not None
    assert (written[0].tensor.name, written[1]) == ("weight", 126)
    device.close()
