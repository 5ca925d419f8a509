// Attention for AVX-512: 32 registers of 16 floats.
// GCC 12 takes the don't-care operands inside its own intrinsics for uninitialized variables
// (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

constexpr int kPanelVectors = 4;  // 6 rows x 4 accumulators, 4 loads and 1 broadcast
constexpr int kDecodeHeads = 4;   // heads that one pass over a chunk serves
constexpr int kDecodeSums = 16;

// clang-format off: each needs those before it.
#include "kernels/simd/avx512.inc"
#include "kernels/simd/exp.inc"
#include "kernels/attention/positions.inc"
#include "kernels/attention/vector_common.inc"
#include "kernels/attention/decode.inc"
#include "kernels/attention/prefill.inc"
#include "kernels/attention/dispatch.inc"
#include "kernels/attention/store.inc"
// clang-format on

}  // namespace

void fill_attention_avx512vnni(KernelTable& t) {
  t.attention = attention;
  t.attention_name = "attention_avx512vnni";
  t.attention_merge = attention_merge;
  t.kv_write = kv_write;
}

}  // namespace edge_infer
