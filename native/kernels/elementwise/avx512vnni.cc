// The elementwise operations for AVX-512.
// GCC 12 takes the don't-care operands inside its own intrinsics for uninitialized variables
// (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <math.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

// clang-format off: each needs those before it.
#include "kernels/simd/avx512.inc"
#include "kernels/simd/exp.inc"
#include "kernels/simd/formats.inc"
#include "kernels/elementwise/vector.inc"
#include "kernels/elementwise/embed.inc"
#include "kernels/elementwise/embed_vector.inc"
// clang-format on

}  // namespace

void fill_elementwise_avx512vnni(KernelTable& t) {
  t.rms_norm = rms_norm;
  t.rope = rope;
  t.gate_mul = gate_mul;
  t.add = add;
  t.scale = scale;
  t.embed_row = embed_row;
}

}  // namespace edge_infer
