// The linears for AVX-512 with VNNI. One 64-byte line of packed weights is one register:
// 32-bit lane r belongs to row r, so a vpdpbusd with 4 broadcast activations adds 4
// products to each of the 16 rows of a block.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

// clang-format off: each needs those before it.
#include "kernels/linear/geometry.inc"
#include "kernels/linear/avx512_load.inc"
#include "kernels/linear/avx512_int8.inc"
#include "kernels/linear/avx512_float.inc"
#include "kernels/linear/avx512_prepare.inc"
// clang-format on

}  // namespace

void fill_linear_avx512vnni(KernelTable& t) {
  using enum WeightFormat;
  t.int4_w4a8 = {int4_w4a8, "linear_int4_w4a8_avx512vnni"};
  t.int4_w4a16 = {linear_a16<kInt4, false>, "linear_int4_w4a16_avx512vnni"};
  t.int4_w4a16_invariant = {linear_a16<kInt4, true>, "linear_int4_w4a16_avx512vnni"};
  t.int8_w8a8 = {int8_w8a8, "linear_int8_w8a8_avx512vnni"};
  t.int8_w8a16 = {linear_a16<kInt8, false>, "linear_int8_w8a16_avx512vnni"};
  t.int8_w8a16_invariant = {linear_a16<kInt8, true>, "linear_int8_w8a16_avx512vnni"};
  t.dense_bf16 = {linear_dense<WeightFormat::kBF16>, "linear_dense_bf16_avx512vnni"};
  t.dense_f16 = {linear_dense<WeightFormat::kF16>, "linear_dense_f16_avx512vnni"};
  t.dense_f32 = {linear_dense<WeightFormat::kF32>, "linear_dense_f32_avx512vnni"};
  t.quantize_int8 = quantize_int8;
  t.round_bf16 = round_bf16;
}

}  // namespace edge_infer
