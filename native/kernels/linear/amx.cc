// Packed weights x int8 or bf16 activations in panels with AMX tiles. Few tokens stay with the
// AVX-512 kernels.
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
// clang-format on

}  // namespace

void fill_linear_amx(KernelTable& t) {
  using enum WeightFormat;
  t.int8_panel_min_tokens = 9;
  t.bf16_panel_min_tokens = 2;
  t.int4_w4a8_panels = {linear_panels<kInt4, ActivationType::kInt8>, "linear_int4_w4a8_amx"};
  t.int8_w8a8_panels = {linear_panels<kInt8, ActivationType::kInt8>, "linear_int8_w8a8_amx"};
  t.int4_w4a16_panels = {linear_panels<kInt4, ActivationType::kBF16>, "linear_int4_w4a16_amx"};
  t.int8_w8a16_panels = {linear_panels<kInt8, ActivationType::kBF16>, "linear_int8_w8a16_amx"};
}

}  // namespace edge_infer
