// linear for sm_90a: y[token][out] = sum over k of x[token][k] * w[out][k], bfloat16 with float32 sums.
//
// The order of every sum, the same in all tiles: k is walked in steps of 64, four wgmma of 16 products each; `chunk`
// steps make one chain that starts at zero; the sums of the chains are added to zero, first to last, each addition
// rounded. With chunk >= steps and SUMS = 0 there is one chain and no addition. A bias is added last, in float32, and y
// rounded once. wgmma gives an output the same bits
// whatever the tile's size and whichever operand the weights are, so tiles are free to differ between batch sizes.
//
// One warpgroup fetches tiles by the copy engine, WARPGROUPS others multiply. What a tile is, fixed at compilation:
//   WARPGROUPS  64 rows of the first operand each
//   COLUMNS     rows of the second operand, a multiple of 8
//   SWAPPED     1: weights are the first operand, tokens the second; 0: the other way round
//   STAGES      steps in flight
//   SPLIT       blocks of one cluster that take the chunks side by side and then add their sums in order; 1: none
//   SHARED      blocks of one cluster that take neighbouring first operands and fetch the second together; 1: none
//   SUMS        1: sums of chunks are added in registers (SPLIT = 1); 0: there is one chain
//   LARGE       1: registers are moved from the fetching warpgroup to the others
// A function `wgmma` for COLUMNS stands before this text.

constexpr int ROWS = WARPGROUPS * 64;
constexpr int STEP = 64;
constexpr int LINE_BYTES = STEP * 2;
constexpr int FIRST_BYTES = ROWS * LINE_BYTES;
constexpr int SECOND_BYTES = COLUMNS * LINE_BYTES;
constexpr int STAGE_BYTES = FIRST_BYTES + SECOND_BYTES;
constexpr int CONSUMERS = WARPGROUPS * 128;
constexpr int THREADS = CONSUMERS + 128;
constexpr int TOKENS = SWAPPED ? COLUMNS : ROWS;
constexpr int OUTS = SWAPPED ? ROWS : COLUMNS;
constexpr int SUM_LINE = OUTS + (SWAPPED ? 4 : 8);  // padded, so that a warp's stores meet no bank twice
constexpr int RESULT_LINE = OUTS + 8;
constexpr int CLUSTER = SPLIT > 1 ? SPLIT : SHARED;
constexpr int NEIGHBOURS = SPLIT > 1 ? 1 : SHARED;  // blocks whose consumers must have left a stage before it is filled

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
struct alignas(64) TensorMap { u64 words[16]; };

struct Problem {
  u16 *y;
  const u16 *bias;                 // [outs], or none
  int tokens, outs;
  int steps, chunk;                // of 64 products: in a whole sum, in one chain
  int first_tiles, second_tiles;   // along the two operands
  int sums_at;                     // where in shared memory the split's sums lie; 0: over the stages
};

struct Work {  // of this block: tiles from, by, below; of each tile the steps from, below
  int tile, tile_step, tiles, from, below;
};

// --- shared memory, barriers, clusters ---

__device__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ void barrier_arrive_in(u32 barrier, u32 block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block) : "memory");
}
__device__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Everyone here; what was written to shared memory is seen by all.
__device__ void cluster_sync() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Everyone here, and no more: the other would wait until results have left the multiprocessor.
__device__ void cluster_meet() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

__device__ float4 read_in(u32 at, u32 block) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at), "r"(block) : "memory");
  return v;
}

__device__ float4 added(float4 one, float4 other) {
  return make_float4(__fadd_rn(one.x, other.x), __fadd_rn(one.y, other.y), __fadd_rn(one.z, other.z),
                     __fadd_rn(one.w, other.w));
}

// --- tiles in and products out ---

__device__ void fetch(u32 to, const TensorMap *map, int k, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      ::"r"(to), "l"(map), "r"(k), "r"(row), "r"(barrier) : "memory");
}
__device__ void fetch_for_all(u32 to, const TensorMap *map, int k, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;"
      ::"r"(to), "l"(map), "r"(k), "r"(row), "r"(barrier), "h"((u16)((1 << SHARED) - 1)) : "memory");
}
// A tile of 128-byte lines, swizzled over 1,024 bytes, as wgmma reads it.
__device__ u64 operand(u32 at) {
  return (u64)((at & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
__device__ u32 rounded(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ float with_bias(const Problem &p, int out, float sum) {
  return p.bias == nullptr || out >= p.outs ? sum : __fadd_rn(sum, __uint_as_float((u32)p.bias[out] << 16));
}

__device__ int tile_row(const Problem &p, int tile, u32 rank) {
  return tile / p.second_tiles * NEIGHBOURS + (NEIGHBOURS > 1 ? rank : 0);
}

__device__ Work work_of(const Problem &p, u32 rank) {
  if constexpr (SPLIT > 1) {
    int chunks = (p.steps + p.chunk - 1) / p.chunk, each = (chunks + SPLIT - 1) / SPLIT * p.chunk;
    int from = min(p.steps, (int)rank * each), tile = blockIdx.x / SPLIT;
    return {tile, 1, tile + 1, from, min(p.steps, from + each)};
  }
  int tiles = p.first_tiles / SHARED * p.second_tiles;
  return {(int)blockIdx.x / SHARED, (int)gridDim.x / SHARED, tiles, 0, p.steps};
}

__device__ void produce(const TensorMap *first, const TensorMap *second, const Problem &p, const Work &work, u32 rank,
                        u32 stages, u32 full, u32 empty) {
  u32 at = 0;
  for (int tile = work.tile; tile < work.tiles; tile += work.tile_step) {
    int first_row = tile_row(p, tile, rank) * ROWS, second_row = tile % p.second_tiles * COLUMNS;
    for (int step = work.from; step < work.below; step++, at++) {
      u32 stage = at % STAGES, barrier = full + 8 * stage, to = stages + stage * STAGE_BYTES;
      barrier_wait(empty + 8 * stage, ((at / STAGES) & 1) ^ 1);
      barrier_expect(barrier, STAGE_BYTES);
      fetch(to, first, step * STEP, first_row, barrier);
      if constexpr (NEIGHBOURS > 1) {
        u32 part = rank * (COLUMNS / SHARED);
        fetch_for_all(to + FIRST_BYTES + part * LINE_BYTES, second, step * STEP, second_row + part, barrier);
      } else {
        fetch(to + FIRST_BYTES, second, step * STEP, second_row, barrier);
      }
    }
  }
}

__device__ void leave(u32 empty, u32 at) {
  u32 barrier = empty + 8 * (at % STAGES), thread = threadIdx.x % 128;
  if (NEIGHBOURS > 1) {
    if (thread < NEIGHBOURS) barrier_arrive_in(barrier, thread);
  } else if (thread == 0) {
    barrier_arrive(barrier);
  }
}

// One chain: the products of `count` steps, from zero. `at` counts the steps that this block has taken.
__device__ __forceinline__ void chain(float (&sum)[COLUMNS / 2], int count, u32 &at, u32 stages, u32 full, u32 empty) {
  for (int step = 0; step < count; step++, at++) {
    u32 stage = at % STAGES, from = stages + stage * STAGE_BYTES;
    barrier_wait(full + 8 * stage, (at / STAGES) & 1);
    u64 first = operand(from + threadIdx.x / 128 * (64 * LINE_BYTES)), second = operand(from + FIRST_BYTES);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int part = 0; part < STEP / 16; part++) wgmma(sum, first + 2 * part, second + 2 * part, step > 0 || part > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (step > 0) {
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      leave(empty, at - 1);
    }
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; i++) asm volatile("" : "+f"(sum[i])::"memory");
  leave(empty, at - 1);
}

// Where in a tile this thread's first sum lies; the others: 8 rows below, 1 column right, and on by 8 columns.
__device__ int sum_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ int sum_column() { return threadIdx.x % 4 * 2; }

__device__ __forceinline__ void keep_sums(float *to, const float (&sum)[COLUMNS / 2]) {
  int row = sum_row();
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; i++) {
    int column = i * 8 + sum_column();
    if constexpr (SWAPPED) {
      to[column * SUM_LINE + row] = sum[4 * i];
      to[(column + 1) * SUM_LINE + row] = sum[4 * i + 1];
      to[column * SUM_LINE + row + 8] = sum[4 * i + 2];
      to[(column + 1) * SUM_LINE + row + 8] = sum[4 * i + 3];
    } else {
      *(float2 *)(to + row * SUM_LINE + column) = make_float2(sum[4 * i], sum[4 * i + 1]);
      *(float2 *)(to + (row + 8) * SUM_LINE + column) = make_float2(sum[4 * i + 2], sum[4 * i + 3]);
    }
  }
}

// Of a swapped tile: neighbours in a warp hold neighbouring tokens, so rows of y are put together in shared memory.
__device__ __forceinline__ void keep_results(u16 *to, const Problem &p, int out, const float (&sum)[COLUMNS / 2]) {
  int row = sum_row();
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; i++) {
    int column = i * 8 + sum_column(), first = out + row, second = first + 8;
    u32 upper = rounded(with_bias(p, first, sum[4 * i]), with_bias(p, first, sum[4 * i + 1]));
    u32 lower = rounded(with_bias(p, second, sum[4 * i + 2]), with_bias(p, second, sum[4 * i + 3]));
    to[column * RESULT_LINE + row] = (u16)upper;
    to[(column + 1) * RESULT_LINE + row] = (u16)(upper >> 16);
    to[column * RESULT_LINE + row + 8] = (u16)lower;
    to[(column + 1) * RESULT_LINE + row + 8] = (u16)(lower >> 16);
  }
}

struct Place {  // of a tile of y
  int token, out, tokens;
};
__device__ Place place_of(const Problem &p, int tile, u32 rank) {
  int first = tile_row(p, tile, rank), second = tile % p.second_tiles;
  int token = (SWAPPED ? second : first) * TOKENS;
  return {token, (SWAPPED ? first : second) * OUTS, min(TOKENS, p.tokens - token)};
}

__device__ void write_kept(const Problem &p, const Place &place, const u16 *results) {
  for (int i = threadIdx.x; i < place.tokens * (OUTS / 8); i += CONSUMERS) {
    int token = i / (OUTS / 8), out = i % (OUTS / 8) * 8;
    if (place.out + out < p.outs)
      *(uint4 *)(p.y + (u64)(place.token + token) * p.outs + place.out + out) =
          *(const uint4 *)(results + token * RESULT_LINE + out);
  }
}

// Of a tile that is not swapped: rows of y from registers, pairs at a time.
__device__ __forceinline__ void write_sums(const Problem &p, const Place &place, const float (&sum)[COLUMNS / 2]) {
  int row = sum_row();
  u16 *upper = p.y + (u64)(place.token + row) * p.outs, *lower = upper + (u64)8 * p.outs;
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; i++) {
    int out = place.out + i * 8 + sum_column();
    if (out >= p.outs) continue;
    u32 above = rounded(with_bias(p, out, sum[4 * i]), with_bias(p, out + 1, sum[4 * i + 1]));
    u32 below = rounded(with_bias(p, out, sum[4 * i + 2]), with_bias(p, out + 1, sum[4 * i + 3]));
    if (row < place.tokens) *(u32 *)(upper + out) = above;
    if (row + 8 < place.tokens) *(u32 *)(lower + out) = below;
  }
}

__device__ __forceinline__ void write_tile(const Problem &p, const Place &place, const float (&sum)[COLUMNS / 2],
                                           u16 *results) {
  if constexpr (SWAPPED) {
    consumers_sync();  // the tile before is written
    keep_results(results, p, place.out, sum);
    consumers_sync();
    write_kept(p, place, results);
  } else {
    write_sums(p, place, sum);
  }
}

__device__ void write_four(const Problem &p, u64 token, int out, float4 total) {
  if (out < p.outs)
    *(uint2 *)(p.y + token * p.outs + out) =
        make_uint2(rounded(with_bias(p, out, total.x), with_bias(p, out + 1, total.y)),
                   rounded(with_bias(p, out + 2, total.z), with_bias(p, out + 3, total.w)));
}

// The sums of a split, wherever in the cluster they lie, added in order; every block takes its share of the tile.
// A block that holds one chunk is the rule: then all are read before the first is added.
__device__ void write_added(const Problem &p, const Place &place, u32 sums, u32 rank) {
  int chunks = (p.steps + p.chunk - 1) / p.chunk, each = (chunks + SPLIT - 1) / SPLIT;
  for (int i = rank * THREADS + threadIdx.x; i < place.tokens * (OUTS / 4); i += SPLIT * THREADS) {
    int token = i / (OUTS / 4), out = i % (OUTS / 4) * 4;
    u32 at = sums + (token * SUM_LINE + out) * 4;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (each == 1) {
      float4 v[SPLIT];
#pragma unroll
      for (int chunk = 0; chunk < SPLIT; chunk++) v[chunk] = read_in(at, chunk < chunks ? chunk : 0);
#pragma unroll
      for (int chunk = 0; chunk < SPLIT; chunk++)
        if (chunk < chunks) total = added(total, v[chunk]);
    } else {
      for (int chunk = 0; chunk < chunks; chunk++)
        total = added(total, read_in(at + chunk % each * (TOKENS * SUM_LINE * 4), chunk / each));
    }
    write_four(p, place.token + token, place.out + out, total);
  }
}

__device__ __forceinline__ void consume_split(const Problem &p, const Work &work, char *memory, u32 stages, u32 full,
                                              u32 empty) {
  float sum[COLUMNS / 2];
  float *sums = (float *)(memory + p.sums_at);
  u32 at = 0;
  for (int step = work.from; step < work.below; step += p.chunk, sums += TOKENS * SUM_LINE) {
    chain(sum, min(p.chunk, work.below - step), at, stages, full, empty);
    if (p.sums_at == 0) consumers_sync();  // the stages are read no more
    keep_sums(sums, sum);
  }
}

__device__ __forceinline__ void consume(const Problem &p, const Work &work, u32 rank, char *memory, u32 stages,
                                        u32 full, u32 empty) {
  float sum[COLUMNS / 2], total[COLUMNS / 2];
  u16 *results = (u16 *)(memory + STAGES * STAGE_BYTES);
  u32 at = 0;
  for (int tile = work.tile; tile < work.tiles; tile += work.tile_step) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) total[i] = 0.0f;
    for (int step = 0; step < p.steps; step += p.chunk) {
      chain(sum, min(p.chunk, p.steps - step), at, stages, full, empty);
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; i++)
        if constexpr (SUMS) total[i] = __fadd_rn(total[i], sum[i]);
    }
    if constexpr (SUMS) write_tile(p, place_of(p, tile, rank), total, results);
    else write_tile(p, place_of(p, tile, rank), sum, results);
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    linear_chunked(const __grid_constant__ TensorMap first, const __grid_constant__ TensorMap second,
                   const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) char raw[];
  __shared__ alignas(8) u64 barriers[2 * STAGES];
  u32 stages = (shared_address(raw) + 1023) & ~1023u, full = shared_address(barriers), empty = full + 8 * STAGES;
  char *memory = raw + (stages - shared_address(raw));
  u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(empty + 8 * stage, WARPGROUPS * NEIGHBOURS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (CLUSTER > 1) cluster_meet();
  else __syncthreads();
  // Launched while the kernel before still runs: nothing of it is read, nor anything written, before it has ended.
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
  Work work = work_of(p, rank);
  if (threadIdx.x >= CONSUMERS) {
    if (LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == CONSUMERS) produce(&first, &second, p, work, rank, stages, full, empty);
  } else {
    if (LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if constexpr (SPLIT > 1) consume_split(p, work, memory, stages, full, empty);
    else consume(p, work, rank, memory, stages, full, empty);
  }
  if constexpr (SPLIT > 1) {
    cluster_sync();
    write_added(p, place_of(p, work.tile, rank), stages + p.sums_at, rank);
  }
  // No block's shared memory goes while another may reach it.
  if (SPLIT > 1) cluster_meet();
  else if (CLUSTER > 1) cluster_sync();
}
