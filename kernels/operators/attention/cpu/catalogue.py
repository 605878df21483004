"""What the catalogue strategy may try on attention's C source. The edits stand in dots, softmax and schedules.

Expected gains were measured on an AVX-512 Xeon with gcc 12, each on the parent where it is meant to be tried:
README.md has the table.
"""

from pathlib import Path

from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.catalogue import Evidence, Facts, Mechanism

HERE = Path(__file__).parent
dots, softmax, schedules = (load_module(HERE / f"{name}.py") for name in ("dots", "softmax", "schedules"))

LANES = "lanes_4|lanes_8|lanes_16"
BATCHED = ("batched_lane_sum", "batched_lane_sum_8", "batched_lane_sum_4")
NO_RISK = "None: every element goes through the same operations in the same order."


def always(sentence: str) -> Evidence:
    """Evidence that holds for every parent."""
    return lambda facts: sentence


def on_path(path: str, sentence: str) -> Evidence:
    """Evidence while a path takes at least a twentieth of the weighted time."""

    def found(facts: Facts) -> str | None:
        share = facts.share_ratio.get(path, 0.5)
        return f"{sentence}; the {path} path takes {share:.0%} of the time" if share >= 0.05 else None

    return found


def registers_of(bits: int, sentence: str) -> Evidence:
    """Evidence on machines whose vector registers are that wide."""
    return lambda facts: f"{sentence}; {facts.simd_bits}-bit registers" if facts.simd_bits >= bits else None


def registers_between(bits: int, less: int, sentence: str) -> Evidence:
    """Evidence on machines whose vector registers are that wide, and not as wide as `less`."""
    wide = registers_of(bits, sentence)
    return lambda facts: wide(facts) if facts.simd_bits < less else None


def widening_shows(facts: Facts) -> str | None:
    """bfloat16 costs clearly more than float32, or the dot product no longer hides what widening costs."""
    share = facts.share_ratio.get("bfloat16", 0.0)
    if share < 0.05 or (share < 0.6 and not facts.applied.intersection(BATCHED)):
        return None
    return f"bfloat16 takes {share:.0%} of the time, and every use of an element widens it again"


def tile_fits(facts: Facts) -> str | None:
    """Keys and values of a doubled tile at head size 64 stay in the first-level cache."""
    doubled = 2 * 128 * 64 * 4
    return f"a tile of 128 keys takes {doubled} of {facts.l1_bytes} bytes" if doubled <= 2 * facts.l1_bytes else None


DOT_MECHANISMS = (
    Mechanism(
        name="lanes_4",
        scope="joint",
        summary="The dot product keeps four running sums in one vector",
        rationale="One running sum waits for each addition before the next can begin.",
        numerical_risks="Products are added in another order: both paths must change together.",
        falsification="No gain: the additions were not what the dot product waits for.",
        expected_gain_ratio=2.1,
        edit=dots.lanes_4,
        evidence=registers_of(128, "the dot product is one chain of dependent additions"),
        contract=("dot_order",),
    ),
    Mechanism(
        name="lanes_8",
        scope="joint",
        summary="Eight running sums instead of four",
        rationale="Half as many vector operations for a dot product, against a longer sum of lanes.",
        numerical_risks="Products are added in another order, and so are weights where lanes sum them.",
        falsification="No gain: the sum of eight lanes costs what the shorter loop saves.",
        expected_gain_ratio=1.2,
        edit=dots.lanes_8,
        evidence=registers_of(256, "a register holds eight elements"),
        contract=("dot_order", "weight_sum_order"),
        requires=("lanes_4",),
        excludes=("batched_lane_sum_4",),
    ),
    Mechanism(
        name="lanes_16",
        scope="joint",
        summary="Sixteen running sums instead of eight",
        rationale="Sixteen keys of sixteen lanes can be summed as one square; alone, the longer sum of lanes loses.",
        numerical_risks="Products are added in another order, and so are weights where lanes sum them.",
        falsification="The batched lane sum on top of it brings no gain either.",
        expected_gain_ratio=0.88,
        edit=dots.lanes_16,
        evidence=registers_of(512, "opens the sum of sixteen keys' lanes in one tree"),
        contract=("dot_order", "weight_sum_order"),
        requires=("lanes_8",),
        excludes=("batched_lane_sum_8",),
    ),
    Mechanism(
        name="batched_lane_sum",
        scope="joint",
        summary="Sixteen keys at a time, their lanes added together by one tree of folds",
        rationale="Fifteen vector additions sum sixteen keys, where each key took fifteen dependent scalar ones.",
        numerical_risks="Lanes are added by halves, not in order; a partial group reads its last key again.",
        falsification="No gain over sixteen lanes: shuffles cost what the additions did.",
        expected_gain_ratio=1.5,
        edit=dots.batched_lane_sum,
        evidence=always("each key's lanes are added one after another"),
        contract=("dot_order",),
        requires=("lanes_16",),
        opened_by=("lanes_16",),
    ),
    Mechanism(
        name="batched_lane_sum_8",
        scope="joint",
        summary="Eight keys at a time, their lanes added together by one tree of folds",
        rationale="Seven vector additions sum eight keys, where each key took seven dependent scalar ones.",
        numerical_risks="Lanes are added by halves, not in order; a partial group reads its last key again.",
        falsification="No gain over eight lanes: shuffles cost what the additions did.",
        expected_gain_ratio=1.12,
        edit=dots.batched_lane_sum_8,
        evidence=registers_between(256, 512, "each key's eight lanes are added one after another"),
        contract=("dot_order",),
        requires=("lanes_8",),
        excludes=("lanes_16",),
    ),
    Mechanism(
        name="batched_lane_sum_4",
        scope="joint",
        summary="Four keys at a time, their lanes added together by one tree of folds",
        rationale="Three vector additions sum four keys, where each key took three dependent scalar ones.",
        numerical_risks="Lanes are added by halves, not in order; a partial group reads its last key again.",
        falsification="No gain over four lanes: shuffles cost what the additions did.",
        expected_gain_ratio=1.09,
        edit=dots.batched_lane_sum_4,
        evidence=registers_between(128, 256, "each key's four lanes are added one after another"),
        contract=("dot_order",),
        requires=("lanes_4",),
        excludes=("lanes_8",),
    ),
    Mechanism(
        name="key_group",
        scope="joint",
        summary="Four keys share each load of the query, their sums side by side in registers",
        rationale="Four independent chains hide the latency of addition, and the query is loaded once for four.",
        numerical_risks=NO_RISK,
        falsification="No gain: the machine overlapped neighbouring keys already.",
        expected_gain_ratio=1.05,
        edit=dots.key_group,
        evidence=always("each key loads the query again"),
        requires=(LANES,),
        excludes=BATCHED,
    ),
    Mechanism(
        name="fused_multiply_add",
        scope="joint",
        summary="Product and sum are rounded once, everywhere",
        rationale="One instruction in place of two in dot product, value product and exp.",
        numerical_risks="Every sum changes by a rounding; one path alone would disagree almost everywhere.",
        falsification="No gain: loads, not arithmetic, set the pace.",
        expected_gain_ratio=1.17,
        edit=dots.fused_multiply_add,
        evidence=registers_of(256, "every product is followed by its addition, and such registers come with FMA"),
        contract=("fma",),
        requires=("batched_lane_sum|batched_lane_sum_8",),
        opened_by=("value_registers",),
    ),
    Mechanism(
        name="scale_query",
        scope="joint",
        summary="The query is scaled once instead of every score",
        rationale="One multiplication a score less.",
        numerical_risks="Products are rounded after scaling; the same for both paths only if both do it.",
        falsification="No gain: the multiplication hid behind the dot product.",
        expected_gain_ratio=1.01,
        edit=dots.scale_query,
        evidence=always("every score is multiplied by the same number"),
        contract=("scale_placement",),
    ),
)

SOFTMAX_MECHANISMS = (
    Mechanism(
        name="polynomial_exp",
        scope="joint",
        summary="exp as a branch-free polynomial in place of the library's expf",
        rationale="A call for every weight cannot be vectorised; elementwise arithmetic can.",
        numerical_risks="Another function: relative error 2e-7, and 0 below exp(-87).",
        falsification="No gain once the dot product is in lanes: exp was not worth mentioning.",
        expected_gain_ratio=1.14,
        edit=softmax.polynomial_exp,
        evidence=always("expf is called for every query and key"),
        contract=("exp",),
        opened_by=("lanes_8", "lane_weight_sum"),
    ),
    Mechanism(
        name="lane_maximum",
        scope="joint",
        summary="The tile's maximum by lanes",
        rationale="A maximum in key order is a chain as long as the tile.",
        numerical_risks="None: a maximum does not depend on its order.",
        falsification="No gain: the chain hid behind the next row's dot products.",
        expected_gain_ratio=1.08,
        edit=softmax.lane_maximum,
        evidence=always("the maximum is one chain of comparisons"),
        contract=("max_order",),
        requires=(LANES,),
        opened_by=BATCHED,
    ),
    Mechanism(
        name="lane_weight_sum",
        scope="joint",
        summary="The weights' sum by lanes, in a loop apart from exp",
        rationale="Addition in key order keeps the loop over exp from running ahead.",
        numerical_risks="Weights are added in another order.",
        falsification="No gain, though exp is a polynomial and its loop is vectorised.",
        expected_gain_ratio=1.07,
        edit=softmax.lane_weight_sum,
        evidence=always("the weights' sum is one chain of additions"),
        contract=("weight_sum_order",),
        requires=(LANES,),
        opened_by=("polynomial_exp", *BATCHED),
    ),
    Mechanism(
        name="value_registers",
        scope="joint",
        summary="The loops of the value product exchanged: 64 outputs stay in registers over all keys of a tile",
        rationale="Key by key, every output element is loaded and stored again.",
        numerical_risks=NO_RISK,
        falsification="No gain although keys and values are unpacked.",
        expected_gain_ratio=1.2,
        edit=softmax.value_registers,
        evidence=always("every key loads and stores the whole output row"),
        requires=(LANES,),
        opened_by=("unpacked_tile", "query_tile"),
    ),
    Mechanism(
        name="skipped_rescale",
        scope="joint",
        summary="No rescaling while the maximum stands",
        rationale="The correction is exactly one then, and multiplying by one changes nothing.",
        numerical_risks="None: x * 1 is x.",
        falsification="No gain: a rescaling is one of a tile's many passes.",
        expected_gain_ratio=1.01,
        edit=softmax.skipped_rescale,
        evidence=always("most tiles after a row's first do not raise its maximum"),
        contract=("rescale",),
    ),
    Mechanism(
        name="reciprocal",
        scope="joint",
        summary="The finished row is multiplied by one reciprocal",
        rationale="One division a row instead of one an element.",
        numerical_risks="One more rounding in every output.",
        falsification="No gain: rows end too seldom.",
        expected_gain_ratio=1.01,
        edit=softmax.reciprocal,
        evidence=always("every output element is divided by the same number"),
        contract=("normalisation",),
    ),
)

SCHEDULE_MECHANISMS = (
    Mechanism(
        name="unpacked_tile",
        scope="joint",
        summary="bfloat16 keys and values are widened once into a workspace",
        rationale="Rows and heads that share a tile can share its widening; until they do, the copy costs more.",
        numerical_risks="None: widening is exact.",
        falsification="Neither a query tile nor heads together bring a gain on top of it.",
        expected_gain_ratio=0.9,
        edit=schedules.unpacked_tile,
        evidence=widening_shows,
        opened_by=BATCHED,
    ),
    Mechanism(
        name="query_tile",
        scope="full",
        summary="Thirty-two neighbouring rows share each tile they open",
        rationale="A tile is widened once for all of them instead of once a row.",
        numerical_risks="None: a row still meets its tiles in order.",
        falsification="No gain over the unpacked tile.",
        expected_gain_ratio=1.4,
        edit=schedules.query_tile,
        evidence=on_path("full", "every row opens, and widens, every tile again"),
        requires=("unpacked_tile",),
        opened_by=("unpacked_tile", *BATCHED),
    ),
    Mechanism(
        name="row_group",
        scope="full",
        summary="Four rows' outputs stay in registers together over the keys of a tile",
        rationale="One load of a value serves four rows, and sixteen sums hide the latency of addition.",
        numerical_risks="Rows at the diagonal see different numbers of keys: shared keys first, then each row's own.",
        falsification="No gain: values came from the nearest cache fast enough.",
        expected_gain_ratio=1.0,
        edit=schedules.row_group,
        evidence=on_path("full", "every row loads every value"),
        requires=("query_tile", "value_registers"),
        opened_by=BATCHED,
    ),
    Mechanism(
        name="whole_tiles_full",
        scope="full",
        summary="Tiles left of the diagonal go without the causal limit, their key count a constant",
        rationale="Constant counts need no remainders, and most tiles of a long sequence are whole.",
        numerical_risks=NO_RISK,
        falsification="No gain: the limit is compared once a tile.",
        expected_gain_ratio=0.99,
        edit=schedules.whole_tiles_full,
        evidence=on_path("full", "only tiles on the diagonal need the causal limit"),
        requires=("row_group",),
        opened_by=("row_group",),
    ),
    Mechanism(
        name="heads_together",
        scope="decode",
        summary="The query heads of one KV head share each tile they open",
        rationale="A tile is widened once for the group instead of once a head.",
        numerical_risks="None: a head still meets its tiles in order.",
        falsification="No gain over the unpacked tile.",
        expected_gain_ratio=1.15,
        edit=schedules.heads_together,
        evidence=on_path("decode", "every query head opens, and widens, every tile again"),
        requires=("unpacked_tile",),
        opened_by=("unpacked_tile", *BATCHED),
    ),
    Mechanism(
        name="head_pair",
        scope="decode",
        summary="Two heads' outputs stay in registers together over the keys of a tile",
        rationale="One load of a value serves two heads, and twice the sums hide the latency of addition.",
        numerical_risks=NO_RISK,
        falsification="No gain: values came from the nearest cache fast enough.",
        expected_gain_ratio=0.98,
        edit=schedules.head_pair,
        evidence=on_path("decode", "every head loads every value"),
        requires=("heads_together", "value_registers"),
    ),
    Mechanism(
        name="aligned_rows",
        scope="joint",
        summary="A row's query and output begin a cache line",
        rationale="Otherwise every wide load of them straddles two lines.",
        numerical_risks=NO_RISK,
        falsification="No gain: the straddling loads were few.",
        expected_gain_ratio=1.02,
        edit=schedules.aligned_rows,
        evidence=always("query and output begin twelve bytes into the row"),
        opened_by=("lanes_16", *BATCHED),
    ),
    Mechanism(
        name="kv_tile_128",
        scope="joint",
        summary="Twice the keys in a step of the online softmax",
        rationale="Half as many maxima, corrections and rescalings.",
        numerical_risks="Maxima and sums are taken over other tiles.",
        falsification="No gain: the tile no longer stays in the nearest cache.",
        expected_gain_ratio=0.99,
        edit=schedules.kv_tile_128,
        evidence=tile_fits,
        contract=("kv_tile",),
    ),
    Mechanism(
        name="prefetched_tile",
        scope="joint",
        summary="The next tile's rows are asked for while this one is worked on",
        rationale="A tile that comes from memory stalls the first dot products with it.",
        numerical_risks="None: a prefetch changes no value.",
        falsification="No gain: the hardware sees the stream by itself.",
        expected_gain_ratio=0.9,
        edit=schedules.prefetched_tile,
        evidence=on_path("decode", "a KV cache is read once, in order"),
    ),
)

CATALOGUE: tuple[Mechanism, ...] = (*DOT_MECHANISMS, *SOFTMAX_MECHANISMS, *SCHEDULE_MECHANISMS)
