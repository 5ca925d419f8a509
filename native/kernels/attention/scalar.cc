// Attention in plain C++: what runs when nothing better can, and the easiest to read.
#include <math.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

// clang-format off: each needs those before it.
#include "kernels/simd/formats.inc"
#include "kernels/attention/positions.inc"
// clang-format on

constexpr int64_t kTile = 32;      // positions expanded at a time
constexpr int64_t kMaxRows = 256;  // (query, head) pairs that share an expanded tile
constexpr float kMinusInfinity = -__builtin_inff();

// One cached row as floats.
void expand_row(KvType type, const char* row, float scale, int64_t d, float* out) {
  for (int64_t i = 0; i < d; ++i) {
    if (type == KvType::kF32) {
      memcpy(out + i, row + 4 * i, 4);
    } else if (type == KvType::kInt8) {
      out[i] = scale * static_cast<float>(static_cast<int8_t>(row[i]));
    } else {
      uint16_t bits;
      memcpy(&bits, row + 2 * i, 2);
      out[i] = type == KvType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
    }
  }
}

// In 8 partial sums, which the compiler can keep in a register.
float dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

struct RowState {
  float max, sum;
};

// The values of a row gather where its result will be.
float* row_values(const AttentionArgs& a, int64_t r) {
  const int64_t d = a.kv->head_dim;
  if (a.partial != nullptr) return a.partial + r * (d + 2);
  return a.out + r / a.q_per_kv * a.out_stride + r % a.q_per_kv * d;
}

// Online softmax of row r over the positions [begin, end) of an expanded tile.
void attend(const AttentionArgs& a, int64_t r, const float* k, const float* v, int64_t begin,
            int64_t end, RowState& state) {
  const int64_t d = a.kv->head_dim;
  const float* q = a.q + r / a.q_per_kv * a.q_stride + r % a.q_per_kv * d;
  float* values = row_values(a, r);
  float scores[kTile];
  float max = state.max;
  for (int64_t t = begin; t < end; ++t) {
    scores[t] = a.scale * dot(q, k + t * d, d);
    max = scores[t] > max ? scores[t] : max;
  }
  const float factor = state.max == max ? 1.0f : expf(state.max - max);
  state.max = max;
  state.sum *= factor;
  for (int64_t i = 0; i < d; ++i) values[i] *= factor;
  for (int64_t t = begin; t < end; ++t) {
    const float p = expf(scores[t] - max);
    state.sum += p;
    for (int64_t i = 0; i < d; ++i) values[i] += p * v[t * d + i];
  }
}

void attend_rows(const AttentionArgs& a, int64_t first, int64_t last) {
  const int64_t d = a.kv->head_dim;
  float* k = static_cast<float*>(a.scratch);
  float* v = k + kTile * d;
  RowState state[kMaxRows];
  for (int64_t r = first; r < last; ++r) {
    state[r - first] = {kMinusInfinity, 0.0f};
    for (int64_t i = 0; i < d; ++i) row_values(a, r)[i] = 0.0f;
  }
  // Tiles at fixed positions, so that a row's sums have the same order beside any other rows.
  const int64_t first_seen = visible(a, first / a.q_per_kv).begin;
  const int64_t end = visible(a, (last - 1) / a.q_per_kv).end;
  const int64_t begin = first_seen < end ? first_seen / kTile * kTile : end;
  CachedRows<kTile> rows;
  for (int64_t p = begin; p < end; p += kTile) {
    const int64_t count = smaller(kTile, end - p);
    find_rows(a, p, first_seen, count, 1, rows);
    for (int64_t t = 0; t < count; ++t) {
      expand_row(a.kv->type, rows.k[t], rows.k_scale[t], d, k + t * d);
      expand_row(a.kv->type, rows.v[t], rows.v_scale[t], d, v + t * d);
    }
    for (int64_t r = first; r < last; ++r) {
      const Range seen = visible(a, r / a.q_per_kv);
      const int64_t from = larger(seen.begin, p), to = smaller(seen.end, p + count);
      if (from < to) attend(a, r, k, v, from - p, to - p, state[r - first]);
    }
  }
  for (int64_t r = first; r < last; ++r) {
    float* values = row_values(a, r);
    const RowState& s = state[r - first];
    if (a.partial != nullptr) {
      values[d] = s.max;
      values[d + 1] = s.sum;
    } else if (s.sum > 0.0f) {
      for (int64_t i = 0; i < d; ++i) values[i] /= s.sum;
    }
  }
}

void attention(const AttentionArgs& a) {
  const int64_t rows = a.num_queries * a.q_per_kv;
  for (int64_t first = 0; first < rows; first += kMaxRows) {
    attend_rows(a, first, smaller(rows, first + kMaxRows));
  }
}

void attention_merge(const float* partial, int64_t parts, int64_t rows, int64_t head_dim,
                     float* out, int64_t out_stride) {
  const int64_t size = head_dim + 2;
  for (int64_t r = 0; r < rows; ++r) {
    float* o = out + r * out_stride;
    float max = kMinusInfinity, sum = 0.0f;
    for (int64_t p = 0; p < parts; ++p) {
      const float part_max = partial[(p * rows + r) * size + head_dim];
      max = part_max > max ? part_max : max;
    }
    for (int64_t i = 0; i < head_dim; ++i) o[i] = 0.0f;
    if (max == kMinusInfinity) continue;
    for (int64_t p = 0; p < parts; ++p) {
      const float* part = partial + (p * rows + r) * size;
      const float factor = expf(part[head_dim] - max);
      sum += factor * part[head_dim + 1];
      for (int64_t i = 0; i < head_dim; ++i) o[i] += factor * part[i];
    }
    for (int64_t i = 0; i < head_dim; ++i) o[i] /= sum;
  }
}

uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_to_bits(x);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// To nearest even. What is too large becomes the largest finite f16, +-65504: an infinity
// in the cache would turn every later row into NaN. A NaN stays one.
uint16_t float_to_f16(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477fe000) return sign | 0x7bff;  // 65504 and above
  if (magnitude < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
    const float units = bits_to_float(magnitude) * 0x1p24f;
    return sign | static_cast<uint16_t>(lrintf(units));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

void write_int8(const float* x, int64_t d, int8_t* out, float* scale) {
  float amax = 0.0f;
  for (int64_t i = 0; i < d && amax == amax; ++i) {
    amax = fabsf(x[i]) <= amax ? amax : fabsf(x[i]);  // takes a NaN, and then keeps it
  }
  const float inverse = amax < kSmallestAmax ? 0.0f : 127.0f / amax;
  *scale = amax < kSmallestAmax ? 0.0f : amax / 127.0f;
  for (int64_t i = 0; i < d; ++i) {
    const float v = x[i] * inverse;
    out[i] = v != v ? 0 : static_cast<int8_t>(lrintf(v));
  }
}

void write_cached(const KvLayer& kv, int64_t row, const float* x, void* cache, float* scales) {
  const int64_t d = kv.head_dim;
  if (kv.type == KvType::kF32) {
    memcpy(static_cast<float*>(cache) + row * d, x, static_cast<size_t>(d) * sizeof(float));
  } else if (kv.type == KvType::kInt8) {
    write_int8(x, d, static_cast<int8_t*>(cache) + row * d, scales + row);
  } else {
    uint16_t* out = static_cast<uint16_t*>(cache) + row * d;
    for (int64_t i = 0; i < d; ++i) {
      out[i] = kv.type == KvType::kF16 ? float_to_f16(x[i]) : float_to_bf16(x[i]);
    }
  }
}

void kv_write(const KvLayer& kv, int64_t block, int64_t slot_in_block, int64_t kv_head,
              const float* k, const float* v) {
  const int64_t row = (block * kv.num_kv_heads + kv_head) * kv.block_size + slot_in_block;
  write_cached(kv, row, k, kv.k, kv.k_scales);
  write_cached(kv, row, v, kv.v, kv.v_scales);
}

}  // namespace

void fill_attention_scalar(KernelTable& t) {
  t.attention = attention;
  t.attention_name = "attention_scalar";
  t.attention_merge = attention_merge;
  t.kv_write = kv_write;
}

}  // namespace edge_infer
