// Causal grouped-query attention for a whole sequence and for one decoded token, in float32 and bfloat16.
//
// Both paths walk the keys of a query row in tiles from key 0 upwards and share every arithmetic step, so a
// row of the full path and the decode call of the same length round alike. README.md states the contract.
// Tensors are token-major: [batch, tokens, heads, head_dim]. head_dim is a multiple of 16, at most 256.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
// Compiled once, whichever path calls it: the same code in every entry would take several times as long to build.
#define SHARED static __attribute__((noinline))

enum dtype { F32, BF16 };
enum { MAX_HEAD_DIM = 256 };

INLINE int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// region kv_tile
// Keys that one step of the online softmax takes in.
enum { KV_TILE = 64 };
// endregion kv_tile

// One sequence of the batch.
struct sequence {
    const void *queries, *keys, *values;
    void *output;
    int64_t query_heads, kv_heads, head_dim;
    enum dtype dtype;
};

// region row
// The state of one query row between two tiles.
struct row {
    float max, weight_sum, scale;
    float query[MAX_HEAD_DIM], output[MAX_HEAD_DIM];
};
// endregion row

// region elements
// The address of an element.
INLINE const void *at(const void *data, int64_t index, enum dtype dtype)
{
    return (const char *)data + index * (dtype == F32 ? sizeof(float) : sizeof(uint16_t));
}

// An element as float32; a bfloat16 is the upper half of one, so widening is exact.
INLINE float element(const void *data, int64_t index, enum dtype dtype)
{
    if (dtype == F32)
        return ((const float *)data)[index];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Stores a finite value, rounded to nearest even for bfloat16.
INLINE void store(void *data, int64_t index, float value, enum dtype dtype)
{
    if (dtype == F32) {
        ((float *)data)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)data)[index] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// endregion elements

// region arithmetic
// The product is rounded, then the sum: contraction is off.
INLINE float multiply_add(float a, float b, float c)
{
    return a * b + c;
}
// endregion arithmetic

// region tile
// A few consecutive keys and values of one KV head; stride is the distance between rows in elements.
struct tile {
    const void *keys, *values;
    int64_t stride, head_dim;
    enum dtype dtype;
};

// What a path keeps beside its rows.
struct workspace {
    float scores[KV_TILE];
};

// The tile of `count` keys that begins at key `start`, seen in place: nothing is copied to the workspace.
INLINE struct tile open_tile(struct sequence s, int64_t kv_head, int64_t start, int64_t count,
                             struct workspace *workspace)
{
    const int64_t first = (start * s.kv_heads + kv_head) * s.head_dim;
    return (struct tile){
        .keys = at(s.keys, first, s.dtype),
        .values = at(s.values, first, s.dtype),
        .stride = s.kv_heads * s.head_dim,
        .head_dim = s.head_dim,
        .dtype = s.dtype,
    };
}

INLINE float key_of(struct tile tile, int64_t key, int64_t d)
{
    return element(tile.keys, key * tile.stride + d, tile.dtype);
}

INLINE float value_of(struct tile tile, int64_t key, int64_t d)
{
    return element(tile.values, key * tile.stride + d, tile.dtype);
}
// endregion tile

// region dot
// One running sum, in the order of the head dimension.
INLINE float dot(const float *query, struct tile tile, int64_t key)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < tile.head_dim; d++)
        sum = multiply_add(query[d], key_of(tile, key, d), sum);
    return sum;
}
// endregion dot

// region scores
INLINE void score_tile(float *scores, const struct row *row, struct tile tile, int64_t count)
{
    for (int64_t key = 0; key < count; key++)
        scores[key] = dot(row->query, tile, key) * row->scale;
}
// endregion scores

// region maximum
// The largest of `max` and the scores, in key order.
INLINE float tile_max(const float *scores, int64_t count, float max)
{
    for (int64_t key = 0; key < count; key++)
        max = scores[key] > max ? scores[key] : max;
    return max;
}
// endregion maximum

// region exponential
INLINE float exponential(float x)
{
    return expf(x);
}
// endregion exponential

// region weights
// Turns scores into weights exp(score - max) and returns their sum, in key order.
INLINE float weigh(float *scores, int64_t count, float max)
{
    float sum = 0.0f;
    for (int64_t key = 0; key < count; key++) {
        scores[key] = exponential(scores[key] - max);
        sum += scores[key];
    }
    return sum;
}
// endregion weights

// region rescale
// Brings what was summed under an earlier maximum to the present one.
INLINE void rescale(struct row *row, float max, int64_t head_dim)
{
    const float correction = exponential(row->max - max);
    row->weight_sum *= correction;
    for (int64_t d = 0; d < head_dim; d++)
        row->output[d] *= correction;
    row->max = max;
}
// endregion rescale

// region values
// Adds weight times value to the output, key after key.
INLINE void accumulate(float *output, const float *weights, struct tile tile, int64_t count)
{
    for (int64_t key = 0; key < count; key++)
        for (int64_t d = 0; d < tile.head_dim; d++)
            output[d] = multiply_add(weights[key], value_of(tile, key, d), output[d]);
}
// endregion values

// region tile_step
// One step of the online softmax up to its weights, which replace the scores.
SHARED void weigh_scores(struct row *restrict row, float *restrict scores, int64_t count, int64_t head_dim)
{
    rescale(row, tile_max(scores, count, row->max), head_dim);
    row->weight_sum += weigh(scores, count, row->max);
}

// One whole step: the first `count` keys of the tile, for one row.
INLINE void attend_typed_tile(struct row *row, struct tile tile, int64_t count, struct workspace *workspace)
{
    score_tile(workspace->scores, row, tile, count);
    weigh_scores(row, workspace->scores, count, tile.head_dim);
    accumulate(row->output, workspace->scores, tile, count);
}

SHARED void attend_f32_tile(struct row *restrict row, struct tile tile, int64_t count,
                            struct workspace *restrict workspace)
{
    tile.dtype = F32;
    attend_typed_tile(row, tile, count, workspace);
}

SHARED void attend_bf16_tile(struct row *restrict row, struct tile tile, int64_t count,
                             struct workspace *restrict workspace)
{
    tile.dtype = BF16;
    attend_typed_tile(row, tile, count, workspace);
}

INLINE void attend_tile(struct row *row, struct tile tile, int64_t count, struct workspace *workspace)
{
    (tile.dtype == F32 ? attend_f32_tile : attend_bf16_tile)(row, tile, count, workspace);
}
// endregion tile_step

// region start
// A row that has seen no key yet; `index` is the query row's first element.
INLINE void start_row(struct row *row, struct sequence s, int64_t index)
{
    row->max = -INFINITY;
    row->weight_sum = 0.0f;
    row->scale = 1.0f / sqrtf((float)s.head_dim);
    for (int64_t d = 0; d < s.head_dim; d++) {
        row->query[d] = element(s.queries, index + d, s.dtype);
        row->output[d] = 0.0f;
    }
}
// endregion start

// region finish
INLINE void finish_row(const struct row *row, struct sequence s, int64_t index)
{
    for (int64_t d = 0; d < s.head_dim; d++)
        store(s.output, index + d, row->output[d] / row->weight_sum, s.dtype);
}
// endregion finish

// region full
// One query head over the whole sequence: row i attends to keys 0 .. i.
INLINE void full_head(struct sequence s, int64_t tokens, int64_t head, struct workspace *workspace)
{
    const int64_t kv_head = head / (s.query_heads / s.kv_heads);
    struct row row;
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t index = (token * s.query_heads + head) * s.head_dim;
        start_row(&row, s, index);
        for (int64_t start = 0; start <= token; start += KV_TILE) {
            const int64_t count = smaller(KV_TILE, token + 1 - start);
            attend_tile(&row, open_tile(s, kv_head, start, count, workspace), count, workspace);
        }
        finish_row(&row, s, index);
    }
}
// endregion full

// region decode
// One token of every query head against the sequence's first `length` keys, its own included.
INLINE void decode_token(struct sequence s, int64_t length, struct workspace *workspace)
{
    struct row row;
    for (int64_t head = 0; head < s.query_heads; head++) {
        const int64_t kv_head = head / (s.query_heads / s.kv_heads);
        start_row(&row, s, head * s.head_dim);
        for (int64_t start = 0; start < length; start += KV_TILE) {
            const int64_t count = smaller(KV_TILE, length - start);
            attend_tile(&row, open_tile(s, kv_head, start, count, workspace), count, workspace);
        }
        finish_row(&row, s, head * s.head_dim);
    }
}
// endregion decode

// The sequence at a place in the batch; each holds `tokens` query rows and room for `keys` keys.
INLINE struct sequence sequence_of(struct sequence batch, int64_t place, int64_t tokens, int64_t keys)
{
    const int64_t query = place * tokens * batch.query_heads * batch.head_dim;
    const int64_t key = place * keys * batch.kv_heads * batch.head_dim;
    struct sequence s = batch;
    s.queries = at(batch.queries, query, batch.dtype);
    s.keys = at(batch.keys, key, batch.dtype);
    s.values = at(batch.values, key, batch.dtype);
    s.output = (void *)at(batch.output, query, batch.dtype);
    return s;
}

INLINE void full(struct sequence batch, const int64_t *dims)
{
    struct workspace workspace;
    for (int64_t place = 0; place < dims[0]; place++)
        for (int64_t head = 0; head < batch.query_heads; head++)
            full_head(sequence_of(batch, place, dims[1], dims[1]), dims[1], head, &workspace);
}

INLINE void decode(struct sequence batch, const int32_t *lengths, const int64_t *dims)
{
    struct workspace workspace;
    for (int64_t place = 0; place < dims[0]; place++)
        decode_token(sequence_of(batch, place, 1, dims[1]), lengths[place], &workspace);
}

// region full_entries
// dims: batch, tokens, query_heads, kv_heads, head_dim.
void attention_full_f32(const float *q, const float *k, const float *v, float *out, const int64_t *dims)
{
    full((struct sequence){q, k, v, out, dims[2], dims[3], dims[4], F32}, dims);
}

void attention_full_bf16(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *out,
                         const int64_t *dims)
{
    full((struct sequence){q, k, v, out, dims[2], dims[3], dims[4], BF16}, dims);
}
// endregion full_entries

// region decode_entries
// dims: batch, capacity, query_heads, kv_heads, head_dim.
void attention_decode_f32(const float *q, const float *k, const float *v, const int32_t *lengths, float *out,
                          const int64_t *dims)
{
    decode((struct sequence){q, k, v, out, dims[2], dims[3], dims[4], F32}, lengths, dims);
}

void attention_decode_bf16(const uint16_t *q, const uint16_t *k, const uint16_t *v, const int32_t *lengths,
                           uint16_t *out, const int64_t *dims)
{
    decode((struct sequence){q, k, v, out, dims[2], dims[3], dims[4], BF16}, lengths, dims);
}
// endregion decode_entries
