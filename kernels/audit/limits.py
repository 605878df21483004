"""What one candidate may use before it is stopped."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of time, memory and output. The runner may start no process at all, so that needs no number."""

    build_s: float = 30.0
    build_address_bytes: int = 4096 * MIB
    build_file_bytes: int = 64 * MIB
    load_s: float = 10.0
    call_s: float = 10.0
    """Longest wait for one message; a message of m calls has no more."""
    cpu_s: int = 300
    """Processor seconds of one runner in its whole life."""
    address_bytes: int = 1024 * MIB
    """Of one runner, beside the mapped inputs and outputs."""
    printed_bytes: int = MIB
    """What a runner may print before it is stopped."""
    input_bytes: int = 256 * MIB
    """Capacity of one session's input file; only touched pages take memory."""
    output_bytes: int = 256 * MIB
    message_bytes: int = 24 * MIB
    """Inputs of the calls that checks release in one message."""
