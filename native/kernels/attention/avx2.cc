// Attention for AVX2: 16 registers of 8 floats.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

constexpr int kPanelVectors = 2;  // 6 rows x 2 accumulators, 2 loads and 1 broadcast
constexpr int kDecodeHeads = 3;   // heads that one pass over a chunk serves
constexpr int kDecodeSums = 8;

// clang-format off: each needs those before it.
#include "kernels/simd/avx2.inc"
#include "kernels/simd/exp.inc"
#include "kernels/attention/positions.inc"
#include "kernels/attention/vector_common.inc"
#include "kernels/attention/decode.inc"
#include "kernels/attention/prefill.inc"
#include "kernels/attention/dispatch.inc"
#include "kernels/attention/store.inc"
// clang-format on

}  // namespace

void fill_attention_avx2(KernelTable& t) {
  t.attention = attention;
  t.attention_name = "attention_avx2";
  t.attention_merge = attention_merge;
  t.kv_write = kv_write;
}

}  // namespace edge_infer
