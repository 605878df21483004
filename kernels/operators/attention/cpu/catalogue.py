from pathlib import Path
from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
D = load_module(Path(__file__).parent/"dots.py"); S = load_module(Path(__file__).parent/"softmax.py"); T=load_module(Path(__file__).parent/"schedules.py")
def m(name, f, scope="joint"):
    return Mechanism(name, scope, "", "", "", "", 1.0, f, lambda x: None)
CATALOGUE=(m("lanes_4",D.lanes_4),m("lanes_8",D.lanes_8),m("lanes_16",D.lanes_16),m("batched_lane_sum",D.batched_lane_sum),m("key_group",D.key_group),
m("fused_multiply_add",D.fused_multiply_add),m("scale_query",D.scale_query),m("polynomial_exp",S.polynomial_exp),m("lane_maximum",S.lane_maximum),
m("lane_weight_sum",S.lane_weight_sum),m("value_registers",S.value_registers),m("skipped_rescale",S.skipped_rescale),m("reciprocal",S.reciprocal),
m("kv_tile_128",T.kv_tile_128),m("unpacked_tile",T.unpacked_tile),m("prefetched_tile",T.prefetched_tile),m("query_tile",T.query_tile,"full"),m("row_group",T.row_group,"full"),
m("whole_tiles_full",T.whole_tiles_full,"full"),m("heads_together",T.heads_together,"decode"),)
