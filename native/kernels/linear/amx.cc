// Packed weights x int8 activations in panels, with AMX-INT8 tiles. Activations in rows
// (few tokens) stay with the AVX-512 kernels.
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
#include "kernels/linear/amx_tiles.inc"
// clang-format on

}  // namespace

void fill_linear_amx(KernelTable& t) {
  t.int8_panel_min_tokens = 9;
  t.int4_w4a8_panels = {linear_panels<WeightFormat::kInt4>, "linear_int4_w4a8_amx"};
  t.int8_w8a8_panels = {linear_panels<WeightFormat::kInt8>, "linear_int8_w8a8_amx"};
}

}  // namespace edge_infer
