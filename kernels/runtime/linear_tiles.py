"""The CUDA kernel of `linear`: what its tiles may be, its source, and how a call is laid over blocks. Pure.

y [rows, outs] = x [rows, width] times w [outs, width] transposed. kernels/operators/linear/cuda/chunked/linear.cu says
in which order sums are added; only `chunk_steps` changes it, no tile does.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "operators" / "linear" / "cuda" / "chunked" / "linear.cu"
ENTRY = "linear_chunked"
ARCHITECTURE = "sm_90a"
STEP = 64
"""Products in a step of k."""
LINE_BYTES = 2 * STEP
ALIGNMENT_BYTES = 1024
MOST_SHARED_BYTES = 232448 - ALIGNMENT_BYTES
MOST_THREADS = 2048
MOST_CLUSTER = 16
MOST_STAGES = 16
PORTABLE_CLUSTER = 8


class TileError(ValueError):
    """A tile that the kernel cannot be compiled for, or a call that it cannot take."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Constants of a compilation, as linear.cu explains them. Raises TileError."""

    warpgroups: int
    columns: int
    stages: int
    swapped: bool
    split: int = 1
    shared: int = 1
    sums: bool = False

    def __post_init__(self) -> None:
        wrong = {
            "warpgroups is 1 or 2": self.warpgroups not in (1, 2),
            "columns is a multiple of 8 up to 256": self.columns % 8 != 0 or not 8 <= self.columns <= 256,
            "stages is 2 or more": self.stages < 2,
            f"split is 1 to {MOST_CLUSTER}": not 1 <= self.split <= MOST_CLUSTER,
            "blocks either split or share": self.split > 1 and (self.shared > 1 or self.sums),
            "each sharing block fetches whole groups of 8 rows": self.columns % (8 * self.shared) != 0,
        }
        for rule, broken in wrong.items():
            if broken:
                raise TileError(f"{rule}: {self}")

    @property
    def rows(self) -> int:
        """Rows of the first operand."""
        return 64 * self.warpgroups

    @property
    def tokens(self) -> int:
        """Rows of x and y."""
        return self.columns if self.swapped else self.rows

    @property
    def outs(self) -> int:
        """Rows of w, columns of y."""
        return self.rows if self.swapped else self.columns

    @property
    def threads(self) -> int:
        """Those that multiply, and one warpgroup that fetches."""
        return 128 * (self.warpgroups + 1)

    @property
    def large(self) -> bool:
        """Whether an even share of the registers would not do."""
        return self.warpgroups == 2 and self.columns * (2 if self.sums else 1) > 128

    @property
    def stages_bytes(self) -> int:
        """Shared memory of all stages."""
        return self.stages * (self.rows + self.columns) * LINE_BYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """One call: blocks, shared bytes, tiles along both operands, and where the sums of a split lie in shared memory."""

    blocks: int
    shared_bytes: int
    first_tiles: int
    second_tiles: int
    sums_at: int
    steps: int
    chunk_steps: int


@lru_cache(maxsize=65536)
def layout(tile: Tile, rows: int, outs: int, width: int, chunk_steps: int, multiprocessors: int) -> Layout:
    """How a call with these sizes is launched. Raises TileError when the tile cannot take it."""
    steps = _ceil(width, STEP)
    chunk_steps = min(chunk_steps or steps, steps)
    chunks = _ceil(steps, chunk_steps)
    if chunks > 1 and tile.split == 1 and not tile.sums:
        raise TileError(f"{chunks} chunks need a tile that splits or sums them: {tile}")
    first, second = (outs, rows) if tile.swapped else (rows, outs)
    first_tiles = _ceil(_ceil(first, tile.rows), tile.shared) * tile.shared
    second_tiles = _ceil(second, tile.columns)
    sums_at, used = _shared(tile, _ceil(chunks, tile.split))
    if used > MOST_SHARED_BYTES:
        raise TileError(f"{used} bytes of shared memory, of which a block has {MOST_SHARED_BYTES}: {tile}")
    tiles = first_tiles * second_tiles
    if tile.split > 1:
        blocks = tiles * tile.split
    else:
        resident = 1 if tile.large else max(1, min(MOST_SHARED_BYTES // used, MOST_THREADS // tile.threads))
        blocks = min(tiles, multiprocessors * resident // tile.shared * tile.shared)
    return Layout(blocks, used, first_tiles, second_tiles, sums_at, steps, chunk_steps)


def stages_that_fit(tile: Tile, room_bytes: int) -> Tile:
    """The tile with as many stages, 2 to 16, as so much shared memory holds. Raises TileError where 2 do not fit."""
    one = tile.stages_bytes // tile.stages
    _, used = _shared(replace(tile, stages=2), 1)
    stages = min(MOST_STAGES, 2 + (room_bytes - used) // one)
    return replace(tile, stages=stages)


def _shared(tile: Tile, chunks_each: int) -> tuple[int, int]:
    """Where the sums of a split lie (0: over the stages), and all bytes."""
    if tile.split == 1:
        return 0, ALIGNMENT_BYTES + tile.stages_bytes + (tile.tokens * (tile.outs + 8) * 2 if tile.swapped else 0)
    sums = tile.tokens * (tile.outs + (4 if tile.swapped else 8)) * 4
    if chunks_each == 1:
        return 0, ALIGNMENT_BYTES + max(tile.stages_bytes, sums)
    return tile.stages_bytes, ALIGNMENT_BYTES + tile.stages_bytes + chunks_each * sums


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def source(tile: Tile) -> str:
    """CUDA C++ for one tile."""
    constants = {
        "WARPGROUPS": tile.warpgroups,
        "COLUMNS": tile.columns,
        "STAGES": tile.stages,
        "SWAPPED": tile.swapped,
        "SPLIT": tile.split,
        "SHARED": tile.shared,
        "SUMS": tile.sums,
        "LARGE": tile.large,
    }
    defines = "".join(f"#define {name} {int(value)}\n" for name, value in constants.items())
    return defines + _product(tile.columns) + _text()


def _product(columns: int) -> str:
    """The instruction for so many columns: its accumulators are written out one by one."""
    count = columns // 2
    names = ", ".join(f"%{i}" for i in range(count))
    values = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    first, second, adds = (f"%{count + i}" for i in range(3))
    shape = f"m64n{columns}k16.f32.bf16.bf16"
    return f"""\
__device__ __forceinline__ void wgmma(float (&sum)[{count}], unsigned long long first, unsigned long long second,
                                      int adds) {{
  asm volatile(
      "{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, {adds}, 0;\\n"
      "wgmma.mma_async.sync.aligned.{shape} {{{names}}}, {first}, {second}, adds, 1, 1, 0, 0;\\n}}"
      : {values}
      : "l"(first), "l"(second), "r"(adds));
}}
"""


@lru_cache(maxsize=1)
def _text() -> str:
    return SOURCE.read_text("utf-8")
