// Packed weights x int8 activations in panels, with AMX-INT8 tiles. Activations in rows
// (few tokens) go to the AVX-512 kernels that were in the table before.
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

// The kernels for activations in rows. Set once, by the filler.
LinearFn g_int4_rows = nullptr;
LinearFn g_int8_rows = nullptr;

void int4_w4a8(const LinearArgs& args) {
  if (args.x->layout == ActivationLayout::kRows) return g_int4_rows(args);
  linear_panels<WeightFormat::kInt4>(args);
}

void int8_w8a8(const LinearArgs& args) {
  if (args.x->layout == ActivationLayout::kRows) return g_int8_rows(args);
  linear_panels<WeightFormat::kInt8>(args);
}

}  // namespace

void fill_linear_amx(KernelTable& t) {
  g_int4_rows = t.int4_w4a8.fn;
  g_int8_rows = t.int8_w8a8.fn;
  t.panel_min_tokens = 9;
  t.int4_w4a8 = {int4_w4a8, "linear_int4_w4a8_amx"};
  t.int8_w8a8 = {int8_w8a8, "linear_int8_w8a8_amx"};
}

}  // namespace edge_infer
