// The elementwise operations for AVX2.
#include <immintrin.h>
#include <math.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

// clang-format off: each needs those before it.
#include "kernels/simd/avx2.inc"
#include "kernels/simd/exp.inc"
#include "kernels/simd/formats.inc"
#include "kernels/elementwise/vector.inc"
#include "kernels/elementwise/embed.inc"
#include "kernels/elementwise/embed_vector.inc"
// clang-format on

}  // namespace

void fill_elementwise_avx2(KernelTable& t) {
  t.rms_norm = rms_norm;
  t.rope = rope;
  t.gate_mul = gate_mul;
  t.add = add;
  t.scale = scale;
  t.embed_row = embed_row;
}

}  // namespace edge_infer
