// The linears for AVX2 with FMA and F16C. A 64-byte line of packed weights is read by
// halves: 8 rows, 4 bytes of each row in one 32-bit lane.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

// clang-format off: each needs those before it.
#include "kernels/linear/geometry.inc"
#include "kernels/linear/avx2_load.inc"
#include "kernels/linear/avx2_quantized.inc"
#include "kernels/linear/avx2_dense.inc"
#include "kernels/linear/avx2_prepare.inc"
// clang-format on

}  // namespace

void fill_linear_avx2(KernelTable& t) {
  t.int4_w4a8 = {int4_w4a8, "linear_int4_w4a8_avx2"};
  t.int4_w4a16 = {int4_w4a16, "linear_int4_w4a16_avx2"};
  t.int8_w8a8 = {int8_w8a8, "linear_int8_w8a8_avx2"};
  t.int8_w8a16 = {int8_w8a16, "linear_int8_w8a16_avx2"};
  t.dense_bf16 = {linear_dense<WeightFormat::kBF16>, "linear_dense_bf16_avx2"};
  t.dense_f16 = {linear_dense<WeightFormat::kF16>, "linear_dense_f16_avx2"};
  t.dense_f32 = {linear_dense<WeightFormat::kF32>, "linear_dense_f32_avx2"};
  t.int4_w4a16_invariant = t.int4_w4a16;
  t.int8_w8a16_invariant = t.int8_w8a16;
  t.quantize_int8 = quantize_int8;
  t.round_bf16 = round_bf16;
}

}  // namespace edge_infer
