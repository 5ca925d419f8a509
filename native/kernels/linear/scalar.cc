// The linears in plain C++: what runs when nothing better can, and the easiest to read.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/table.h"
#include "kernels/types.h"

namespace edge_infer {
namespace {

#include "kernels/linear/geometry.inc"

float bits_to_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

uint32_t float_to_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

float bf16_to_float(uint16_t b) { return bits_to_float(static_cast<uint32_t>(b) << 16); }

float f16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0x1f) return bits_to_float(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal
  return sign != 0 ? -magnitude : magnitude;
}

float scale_to_float(ScaleType type, uint16_t bits) {
  return type == ScaleType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

// Every form as scale * (q - center) + offset, where the stored q is unsigned and offset
// multiplies the group's sum of activations. With the center in the middle of the range
// the two terms do not cancel.
struct GroupScale {
  float scale;
  float offset;
};

GroupScale group_scale(const LinearWeight& w, int64_t block, int64_t g, int r) {
  const int64_t i = 16 * g + r;
  const float scale = scale_to_float(w.scale_type, block_scales(w, block)[i]);
  float offset = 0.0f;
  if (w.form == GroupForm::kZeroPoint) {
    offset = scale * static_cast<float>(8 - block_zeros(w, block)[i]);
  } else if (w.form == GroupForm::kMinimum) {
    offset = scale_to_float(w.scale_type, block_mins(w, block)[i]) + 8.0f * scale;
  }
  return {scale, offset};
}

// values[16 * i + r] = stored value - center of (row r, k0 + i), i < group.
void unpack_group(const LinearWeight& w, int64_t block, int64_t k0, int8_t* values) {
  if (w.format == WeightFormat::kInt4) {
    const uint8_t* line = block_lines(w, block) + 8 * k0;
    for (int64_t i = 0; i < w.group; i += 8, line += 64) {
      for (int r = 0; r < 16; ++r) {
        for (int j = 0; j < 4; ++j) {
          values[16 * (i + j) + r] = static_cast<int8_t>((line[4 * r + j] & 15) - 8);
          values[16 * (i + 4 + j) + r] = static_cast<int8_t>((line[4 * r + j] >> 4) - 8);
        }
      }
    }
    return;
  }
  const uint8_t* line = block_lines(w, block) + 16 * k0;
  for (int64_t i = 0; i < w.group; i += 4, line += 64) {
    for (int r = 0; r < 16; ++r) {
      for (int j = 0; j < 4; ++j) {
        values[16 * (i + j) + r] = static_cast<int8_t>(line[4 * r + j] - 128);
      }
    }
  }
}

// Products of one group and one token, for the 16 rows of a block.
void group_dot(const int8_t* values, const int8_t* x, int64_t group, float* dots) {
  int32_t sums[16] = {};
  for (int64_t i = 0; i < group; ++i) {
    for (int r = 0; r < 16; ++r) sums[r] += values[16 * i + r] * x[i];
  }
  for (int r = 0; r < 16; ++r) dots[r] = static_cast<float>(sums[r]);
}

void group_dot(const int8_t* values, const uint16_t* x, int64_t group, float* dots) {
  float sums[16] = {};
  for (int64_t i = 0; i < group; ++i) {
    const float xi = bf16_to_float(x[i]);
    for (int r = 0; r < 16; ++r) sums[r] += static_cast<float>(values[16 * i + r]) * xi;
  }
  for (int r = 0; r < 16; ++r) dots[r] = sums[r];
}

void linear_quantized(const LinearArgs& args) {
  const LinearWeight& w = *args.w;
  const Activations& x = *args.x;
  const int64_t groups = w.k / w.group;
  int8_t values[16 * 128];
  float dots[16];
  for (int64_t block = args.block_begin; block < args.block_end; ++block) {
    float* out = args.out + 16 * (block - args.block_begin);
    for (int64_t g = 0; g < groups; ++g) {
      unpack_group(w, block, g * w.group, values);
      GroupScale scales[16];
      for (int r = 0; r < 16; ++r) scales[r] = group_scale(w, block, g, r);
      for (int64_t t = args.token_begin; t < args.token_end; ++t) {
        float x_scale = 1.0f;
        if (x.type == ActivationType::kInt8) {
          x_scale = x.scales[t * groups + g];
          group_dot(values, int8_values(x, t, g * w.group), w.group, dots);
        } else {
          group_dot(values, bf16_values(x, t, g * w.group), w.group, dots);
        }
        const float x_sum = x.sums[t * groups + g];
        float* row = out + (t - args.token_begin) * args.ldo;
        for (int r = 0; r < 16; ++r) {
          const float term = scales[r].scale * dots[r] * x_scale + scales[r].offset * x_sum;
          row[r] = g == 0 ? term : row[r] + term;
        }
      }
    }
  }
}

float dense_value(const LinearWeight& w, int64_t i) {
  if (w.format == WeightFormat::kF32) return static_cast<const float*>(w.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(w.data)[i];
  return w.format == WeightFormat::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void linear_dense(const LinearArgs& args) {
  const LinearWeight& w = *args.w;
  const Activations& x = *args.x;
  for (int64_t block = args.block_begin; block < args.block_end; ++block) {
    const int64_t rows = rows_in_block(w, block);
    for (int64_t t = args.token_begin; t < args.token_end; ++t) {
      const float* xt = static_cast<const float*>(x.values) + t * x.ld;
      float* out = args.out + (t - args.token_begin) * args.ldo + 16 * (block - args.block_begin);
      for (int64_t r = 0; r < 16; ++r) out[r] = 0.0f;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = (16 * block + r) * w.k;
        float sums[4] = {};  // several, as in the vector units: the error grows with their length
        for (int64_t i = 0; i < w.k; ++i) sums[i & 3] += dense_value(w, row + i) * xt[i];
        out[r] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      }
    }
  }
}

void quantize_int8(const float* x, int64_t token, const Activations& a) {
  const int64_t groups = a.k / a.group;
  const int64_t step = panel_step(a.group);
  for (int64_t g = 0; g < groups; ++g, x += a.group) {
    // Magnitudes compare like their bits, and NaN is above all: it reaches the scale.
    uint32_t amax_bits = 0;
    for (int64_t i = 0; i < a.group; ++i) {
      const uint32_t bits = float_to_bits(x[i]) & 0x7fffffff;
      if (bits > amax_bits) amax_bits = bits;
    }
    const float amax = bits_to_float(amax_bits);
    const bool zero = amax < kSmallestAmax;
    const float inverse = zero ? 0.0f : 127.0f / amax;
    const float scale = zero ? 0.0f : amax / 127.0f;
    int32_t sum = 0;
    for (int64_t i = 0; i < a.group; i += step) {
      int8_t* q = int8_values(a, token, g * a.group + i);
      for (int64_t j = 0; j < step; ++j) {
        const float v = x[i + j] * inverse;
        q[j] = v == v ? static_cast<int8_t>(std::lrint(v)) : int8_t{0};
        sum += q[j];
      }
    }
    a.scales[token * groups + g] = scale;
    a.int_sums[token * groups + g] = sum;
    a.sums[token * groups + g] = scale * static_cast<float>(sum);
  }
}

uint16_t float_to_bf16(float f) {
  const uint32_t bits = float_to_bits(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void round_bf16(const float* x, int64_t token, const Activations& a) {
  const int64_t groups = a.k / a.group;
  for (int64_t g = 0; g < groups; ++g) {
    float sum = 0.0f;
    for (int64_t i = g * a.group; i < (g + 1) * a.group; ++i) {
      uint16_t* value = bf16_values(a, token, i);
      *value = float_to_bf16(x[i]);
      sum += bf16_to_float(*value);
    }
    a.sums[token * groups + g] = sum;
  }
}

}  // namespace

void fill_linear_scalar(KernelTable& t) {
  t.int4_w4a8 = {linear_quantized, "linear_int4_w4a8_scalar"};
  t.int4_w4a16 = {linear_quantized, "linear_int4_w4a16_scalar"};
  t.int8_w8a8 = {linear_quantized, "linear_int8_w8a8_scalar"};
  t.int8_w8a16 = {linear_quantized, "linear_int8_w8a16_scalar"};
  t.dense_bf16 = {linear_dense, "linear_dense_bf16_scalar"};
  t.dense_f16 = {linear_dense, "linear_dense_f16_scalar"};
  t.dense_f32 = {linear_dense, "linear_dense_f32_scalar"};
  t.int4_w4a16_invariant = t.int4_w4a16;
  t.int8_w8a16_invariant = t.int8_w8a16;
  t.quantize_int8 = quantize_int8;
  t.round_bf16 = round_bf16;
}

}  // namespace edge_infer
