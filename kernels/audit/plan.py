"""How much is timed: groups of fresh processes, blocks in each, and which arms."""

from dataclasses import dataclass, replace

from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, LOWER_HALVES, PAIRED, ROOT

GROUP_S = 0.3
"""What the paired arms of a group may take, counted as if no workload were long and a sample were one message; slow
kernels get fewer blocks."""
LONG_NS = 1_000_000
"""From here on a message is long: it averages over what disturbs it, and a few of them are most of a group's time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One timing session. `paired` arms are timed in a palindrome, `beside` ones once, in the first blocks."""

    groups: int
    blocks: int
    palindromes: int = 4
    """In a block each workload is timed in so many palindromes, one after the other. What disturbs a machine for some
    milliseconds hits several in a row, so that as many in three blocks tell more."""
    paired: tuple[str, ...] = (INCUMBENT, CANDIDATE)
    beside: tuple[str, ...] = ()
    beside_blocks: int = 0
    twins: int = 1
    """Processes of each paired arm in a group; they take turns, a palindrome each."""
    copies: int = 4
    """Messages of the candidate in a group that are copied and made again in a process that is not timed."""
    most_groups: int = 0
    """Groups may be added up to this number; no more than `groups` when it is smaller."""
    rule: int = LOWER_HALVES
    """How its samples are to be evaluated."""

    def alone(self) -> "Plan":
        """The paired arms without those beside them."""
        return replace(self, beside=(), beside_blocks=0)

    def paced(self, pass_s: float) -> "Plan":
        """Fewer blocks a group when one pass of one arm over all workloads takes long: `pass_s` seconds.

        Palindromes stay: with fewer, the half of an arm's samples that each twin has would say little of its error.
        """
        blocks = max(1, min(self.blocks, round(GROUP_S / (2 * self.palindromes * len(self.paired) * pass_s))))
        return replace(self, blocks=blocks, beside_blocks=min(self.beside_blocks, blocks))

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms, the paired ones first."""
        return self.paired + self.beside

    def blocks_of(self, arm: str) -> int:
        """Blocks of one arm in a group."""
        return self.blocks if arm in self.paired else self.beside_blocks

    def samples_of(self, arm: str) -> int:
        """The most samples of one arm in a block."""
        return 2 * self.palindromes if arm in self.paired else 1

    def halves_of(self, message_ns: float) -> int:
        """Samples of a paired arm in a block of a workload whose message takes so long: of a long one half as many
        palindromes, one at least."""
        return 2 * (max(1, self.palindromes // 2) if message_ns >= LONG_NS else self.palindromes)


SCREEN = Plan(groups=1, blocks=1, copies=8, most_groups=6, rule=PAIRED)
CONFIRMATION = Plan(
    groups=3, blocks=3, beside=(ROOT,), beside_blocks=1, twins=2, copies=16, most_groups=40, rule=PAIRED
)
BESIDE_GROUPS = 8
"""A confirmation's arms beside the pair are timed in its first groups only: their limits need no more."""


def qualification(baselines: tuple[str, ...]) -> Plan:
    """The root beside its baselines, all of them paired."""
    return Plan(groups=4, blocks=1, palindromes=1, paired=(ROOT, *baselines))
