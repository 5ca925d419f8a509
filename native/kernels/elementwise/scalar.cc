// The elementwise operations in plain C++.
#include <math.h>

#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

// clang-format off: each needs those before it.
#include "kernels/simd/formats.inc"
#include "kernels/elementwise/embed.inc"
// clang-format on

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  float sums[8] = {};
  for (int64_t i = 0; i < n; ++i) sums[i % 8] += x[i] * x[i];
  float sum = 0.0f;
  for (int j = 0; j < 8; ++j) sum += sums[j];
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void rope(float* x, const float* cos, const float* sin, int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

float gate(GateFunction f, float g) {
  switch (f) {
    case GateFunction::kSilu: return g / (1.0f + expf(-g));
    // 1 + erf(x) as erfc(-x), and (1 + tanh(u)) / 2 as 1 / (1 + exp(-2u)): for negative g the
    // sums would cancel.
    case GateFunction::kGeluErf:
      return static_cast<float>(0.5 * g * erfc(-0.70710678118654752 * g));
    case GateFunction::kGeluTanh: break;
  }
  const float u = 0.79788456f * (g + 0.044715f * g * g * g);
  return g / (1.0f + expf(-2.0f * u));
}

void gate_mul(GateFunction f, const float* g, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = gate(f, g[i]) * up[i];
}

void add(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void scale(float s, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] *= s;
}

void embed_row(const LinearWeight& w, int64_t row, float* out) {
  switch (w.format) {
    case WeightFormat::kF32:
      memcpy(out, dense_row(w, row), static_cast<size_t>(w.k) * sizeof(float));
      return;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      for (int64_t k = 0; k < w.k; ++k) {
        uint16_t bits;
        memcpy(&bits, dense_row(w, row) + 2 * k, 2);
        out[k] = w.format == WeightFormat::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
      }
      return;
    case WeightFormat::kInt4:
    case WeightFormat::kInt8: break;
  }
  const uint8_t* line = packed_row(w, row);
  for (int64_t k = 0; k < w.k; k += w.group) {
    const GroupScale s = group_scale(w, row, k / w.group);
    for (int64_t i = 0; i < w.group; i += 4) {
      // One line holds 4 values of K in int8, two times 4 in int4.
      const bool high = w.format == WeightFormat::kInt4 && i % 8 == 4;
      for (int64_t j = 0; j < 4; ++j) {
        int q = line[j];
        if (w.format == WeightFormat::kInt4) q = high ? q >> 4 : q & 15;
        out[k + i + j] = s.scale * (static_cast<float>(q) - s.center) + s.min;
      }
      if (w.format == WeightFormat::kInt8 || high) line += 64;
    }
  }
}

}  // namespace

void fill_elementwise_scalar(KernelTable& t) {
  t.rms_norm = rms_norm;
  t.rope = rope;
  t.gate_mul = gate_mul;
  t.add = add;
  t.scale = scale;
  t.embed_row = embed_row;
}

}  // namespace edge_infer
