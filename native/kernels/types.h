// Plain data shared by every ISA unit. No functions live here: an inline
// function compiled for AVX-512 in one unit could become the copy that an AVX2
// machine calls.
#pragma once

#include <cstdint>

namespace edge_infer {

enum class WeightFormat : uint8_t { kInt4 = 0, kInt8 = 1, kBF16 = 2, kF16 = 3, kF32 = 4 };

// How a quantized value becomes a weight, per group along K.
//   kSymmetric: scale * (q - 8) for int4, scale * (q - 128) for int8
//   kZeroPoint: scale * (q - zero), zero in one byte        (int4 only)
//   kMinimum:   scale * q + min, min in 16 bits             (int4 only)
enum class GroupForm : uint8_t { kSymmetric = 0, kZeroPoint = 1, kMinimum = 2 };

// Type of scales and mins.
enum class ScaleType : uint8_t { kF16 = 0, kBF16 = 1 };

// A linear's weight. Quantized rows (output channels) come in blocks of 16.
//   int4 data: [N/16, K/8, 64] bytes. In one line the low nibble of byte 4*r + j
//              is (row r, k + j), the high nibble is (row r, k + 4 + j), j = 0..3.
//   int8 data: [N/16, K/4, 64] bytes. Byte 4*r + j is (row r, k + j), value + 128.
//   scales:    [N/16, K/group, 16] in scale_type.
//   offsets:   [N/16, K/group, 16] uint8 zeros or scale_type mins; null if symmetric.
//   dense (bf16, f16, f32): [N, K] row-major, group = 0, scales = offsets = null.
// For quantized formats N is padded to 16 in the arrays (padding rows have scale
// 0 and min 0), K is a multiple of group, group is 32, 64 or 128. `n` is the true
// number of rows. Quantized data are 64-byte aligned; dense data may have only
// the alignment of their element.
struct LinearWeight {
  WeightFormat format;
  GroupForm form;
  ScaleType scale_type;
  int64_t n;
  int64_t k;
  int64_t group;
  const void* data;
  const uint16_t* scales;
  const void* offsets;
};

enum class ActivationType : uint8_t { kInt8 = 0, kBF16 = 1, kF32 = 2 };

// kRows:   values are [tokens, k], row-major.
// kPanels: values are [ceil(tokens/16), k/step, 16, step] with step = min(group, 64) for
//          int8 and 32 for bf16: every [16, step] panel is one AMX A tile. Rows past
//          `tokens` hold unspecified values whose results are never stored.
enum class ActivationLayout : uint8_t { kRows = 0, kPanels = 1 };

// The input of a linear, prepared once and shared by all linears that read it.
//   kInt8: x ~ scales[t, g] * values; scales symmetric, amax / 127 per token and group.
//   kBF16: x rounded to bf16 (nearest even).
//   kF32:  x itself, rows `ld` floats apart (dense weights).
// For kInt8: int_sums[t, g] = sum of the group's int8 values, sums = scales * int_sums.
// For kBF16: sums[t, g] = sum of the group's rounded values.
struct Activations {
  ActivationType type;
  ActivationLayout layout;
  int64_t tokens;
  int64_t k;
  int64_t group;  // 0 for kF32
  int64_t ld;     // kF32 only: floats between rows
  void* values;
  float* scales;      // [tokens, k/group]
  float* sums;        // [tokens, k/group]
  int32_t* int_sums;  // [tokens, k/group]
};

// One call computes tokens [token_begin, token_end) x row blocks [block_begin, block_end).
// `out` is the address of (token_begin, row 16 * block_begin); token rows are `ldo`
// floats apart. All 16 columns of a block are written (0 for padding rows).
// token_begin is a multiple of 16. `scratch` is 64-byte aligned and holds
// 64 * k + 65536 bytes, private to the calling thread.
struct LinearArgs {
  const LinearWeight* w;
  const Activations* x;
  int64_t token_begin;
  int64_t token_end;
  int64_t block_begin;
  int64_t block_end;
  float* out;
  int64_t ldo;
  void* scratch;
};

enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kInt8 = 3 };

// The paged cache of one layer.
//   k, v: [num_blocks, num_kv_heads, block_size, head_dim]
//   k_scales, v_scales (int8 only): [num_blocks, num_kv_heads, block_size], symmetric amax / 127.
struct KvLayer {
  KvType type;
  int64_t block_size;
  int64_t num_kv_heads;
  int64_t head_dim;
  void* k;
  void* v;
  float* k_scales;
  float* v_scales;
};

// Attention of consecutive query tokens of one sequence over one KV head.
// Query i (0 <= i < num_queries) stands at position query_position + i and sees the
// positions p with kv_begin <= p < kv_end, p <= its own position and, when window > 0,
// p > its own position - window. Head h of the group (0 <= h < q_per_kv) of query i is
// q[i * q_stride + h * head_dim], its output out[i * out_stride + h * head_dim].
// With `partial` set nothing is written to `out`; row i * q_per_kv + h of partial
// ([head_dim + 2] floats) gets the unnormalized sum of exp(s - max) * v, then max,
// then sum of exp; a row that sees no position gets zeros, -inf, 0.
// With `batch_invariant` set a row has the same bits however many queries the call has.
// `scratch` is 64-byte aligned, 512 KiB, private to the calling thread.
struct AttentionArgs {
  const KvLayer* kv;
  // Block of position p: block_table[p / block_size]; read only for positions that are seen.
  const int32_t* block_table;
  int64_t kv_head;
  int64_t q_per_kv;
  int64_t num_queries;
  int64_t query_position;
  int64_t kv_begin;
  int64_t kv_end;
  int64_t window;
  float scale;
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  float* partial;
  bool batch_invariant;
  void* scratch;
};

enum class GateFunction : uint8_t { kSilu = 0, kGeluErf = 1, kGeluTanh = 2 };

}  // namespace edge_infer
