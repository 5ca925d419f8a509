// Packed weights x bf16 activations with AVX512-BF16. Whether it pays is a matter of the CPU:
// on AMD's vdpbf16ps is as fast as an fma, with twice its products; on Intel's it has half the
// products of an fma in a cycle, and only int4 weights win, which cost less to turn into bf16
// than into float.
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
#include "kernels/linear/bf16_expand.inc"
#include "kernels/linear/avx512_bf16_rows.inc"
// clang-format on

}  // namespace

void fill_linear_avx512bf16(KernelTable& t, bool fast_products) {
  using enum WeightFormat;
  t.int4_w4a16 = {linear_bf16_rows<kInt4, false>, "linear_int4_w4a16_avx512bf16"};
  if (!fast_products) return;
  t.int4_w4a16_invariant = {linear_bf16_rows<kInt4, true>, "linear_int4_w4a16_avx512bf16"};
  t.int8_w8a16 = {linear_bf16_rows<kInt8, false>, "linear_int8_w8a16_avx512bf16"};
  t.int8_w8a16_invariant = {linear_bf16_rows<kInt8, true>, "linear_int8_w8a16_avx512bf16"};
}

}  // namespace edge_infer
