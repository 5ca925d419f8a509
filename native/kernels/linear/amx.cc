// Packed weights x int8 or bf16 activations in panels with AMX tiles, and int4 weights x bf16
// activations in rows with AVX512-BF16, which all CPUs with AMX have. The other rows stay with
// the AVX-512 kernels: vdpbf16ps does half the products of an fma in a cycle, and int8 weights
// cost more to turn into bf16 than into float.
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
#include "kernels/linear/amx_tiles.inc"
#include "kernels/linear/amx_unpack.inc"
#include "kernels/linear/amx_panels.inc"
#include "kernels/linear/amx_bf16_rows.inc"
// clang-format on

}  // namespace

void fill_linear_amx(KernelTable& t) {
  using enum WeightFormat;
  t.int8_panel_min_tokens = 9;
  t.bf16_panel_min_tokens = 2;
  t.int4_w4a16 = {linear_bf16_rows<kInt4>, "linear_int4_w4a16_avx512bf16"};
  t.int4_w4a8_panels = {linear_panels<kInt4, ActivationType::kInt8>, "linear_int4_w4a8_amx"};
  t.int8_w8a8_panels = {linear_panels<kInt8, ActivationType::kInt8>, "linear_int8_w8a8_amx"};
  t.int4_w4a16_panels = {linear_panels<kInt4, ActivationType::kBF16>, "linear_int4_w4a16_amx"};
  t.int8_w8a16_panels = {linear_panels<kInt8, ActivationType::kBF16>, "linear_int8_w8a16_amx"};
}

}  // namespace edge_infer
