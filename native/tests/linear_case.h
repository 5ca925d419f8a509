// A random linear with its inputs, packed from the definition in kernels/types.h, and the
// same values in double precision. Written without the kernels' own helpers.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/table.h"
#include "tests/check.h"

namespace edge_infer::test {

struct LinearShape {
  WeightFormat format;
  GroupForm form;
  ScaleType scale_type;
  int64_t group;  // 0: dense
  int64_t n;
  int64_t k;

  std::string name() const {
    const char* formats[] = {"int4", "int8", "bf16", "f16", "f32"};
    const char* forms[] = {"symmetric", "zero", "min"};
    const char* scales[] = {"f16", "bf16"};
    return std::string(formats[int(format)]) + " " + forms[int(form)] + " " +
           scales[int(scale_type)] + " g" + std::to_string(group) + " n" + std::to_string(n) +
           " k" + std::to_string(k);
  }
};

enum class Values { kRandom, kExtreme };

inline double f16_value(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double mantissa = h & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

inline double bf16_value(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// A random 16-bit float of either type with a magnitude in [2^-8, 2^-4), or half of the
// time a negative one when `any_sign`.
inline uint16_t random_bits16(ScaleType type, bool any_sign, Random& random) {
  const uint16_t sign = any_sign && random.below(2) == 0 ? 0x8000 : 0;
  if (type == ScaleType::kF16) {
    return static_cast<uint16_t>(sign | ((7 + random.below(4)) << 10) | random.below(1024));
  }
  return static_cast<uint16_t>(sign | ((119 + random.below(4)) << 7) | random.below(128));
}

class LinearCase {
 public:
  LinearCase(const LinearShape& shape, Values values, uint64_t seed)
      : shape_(shape),
        rows_((shape.n + 15) / 16 * 16),
        data_(data_bytes()),
        scales_(rows_ * groups()),
        offsets_(rows_ * groups() * 2),
        weights_(static_cast<size_t>(shape.n * shape.k)),
        magnitudes_(static_cast<size_t>(shape.n * shape.k)) {
    Random random(seed);
    if (shape.group == 0) {
      fill_dense(random);
    } else {
      fill_quantized(values, random);
    }
    weight = {shape.format, shape.form,   shape.scale_type, shape.n, shape.k,
              shape.group,  data_.data(), nullptr,          nullptr};
    if (shape.group != 0) weight.scales = scales_.data();
    if (shape.form != GroupForm::kSymmetric) weight.offsets = offsets_.data();
  }

  LinearWeight weight;

  double value(int64_t row, int64_t k) const { return weights_[row * shape_.k + k]; }
  // What the rounding errors of a kernel are relative to: the terms it adds, not their sum.
  double magnitude(int64_t row, int64_t k) const { return magnitudes_[row * shape_.k + k]; }

 private:
  int64_t groups() const { return shape_.group == 0 ? 0 : shape_.k / shape_.group; }

  int64_t data_bytes() const {
    switch (shape_.format) {
      case WeightFormat::kInt4: return rows_ * shape_.k / 2;
      case WeightFormat::kInt8: return rows_ * shape_.k;
      case WeightFormat::kF32: return shape_.n * shape_.k * 4;
      default: return shape_.n * shape_.k * 2;
    }
  }

  void fill_quantized(Values values, Random& random) {
    const bool int4 = shape_.format == WeightFormat::kInt4;
    const int top = int4 ? 15 : 255;
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t block = row / 16, r = row % 16;
      for (int64_t g = 0; g < groups(); ++g) {
        const int64_t at = (block * groups() + g) * 16 + r;
        const bool padding = row >= shape_.n;
        const uint16_t scale = padding ? 0 : random_bits16(shape_.scale_type, true, random);
        scales_[at] = scale;
        double zero = int4 ? 8 : 128, min = 0;
        if (shape_.form == GroupForm::kZeroPoint) {
          const int zero_top = values == Values::kExtreme ? 256 : 17;
          offsets_[at] = static_cast<uint8_t>(random.below(zero_top));
          zero = offsets_[at];
        } else if (shape_.form == GroupForm::kMinimum) {
          const uint16_t m = padding ? 0 : random_bits16(shape_.scale_type, true, random);
          std::memcpy(offsets_.data() + 2 * at, &m, 2);
          zero = 0;
          min = from16(m);
        }
        const int extreme = random.below(2) == 0 ? 0 : top;
        for (int64_t k = g * shape_.group; k < (g + 1) * shape_.group; ++k) {
          const int q = values == Values::kExtreme ? extreme : int(random.below(top + 1));
          store(block, r, k, q);
          if (padding) continue;
          const size_t i = static_cast<size_t>(row * shape_.k + k);
          weights_[i] = from16(scale) * (q - zero) + min;
          magnitudes_[i] = std::fabs(from16(scale)) * (std::fabs(q - zero) + 16) + std::fabs(min);
        }
      }
    }
  }

  void store(int64_t block, int64_t r, int64_t k, int q) {
    if (shape_.format == WeightFormat::kInt8) {
      data_[(block * (shape_.k / 4) + k / 4) * 64 + 4 * r + k % 4] = static_cast<uint8_t>(q);
      return;
    }
    uint8_t& byte = data_[(block * (shape_.k / 8) + k / 8) * 64 + 4 * r + k % 4];
    byte = static_cast<uint8_t>(k % 8 < 4 ? (byte & 0xf0) | q : (byte & 0x0f) | (q << 4));
  }

  void fill_dense(Random& random) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (shape_.format == WeightFormat::kF32) {
        const float f = random.uniform(-1.0f, 1.0f);
        std::memcpy(data_.data() + 4 * i, &f, 4);
        weights_[i] = f;
      } else {
        const bool f16 = shape_.format == WeightFormat::kF16;
        const uint16_t b = random_bits16(f16 ? ScaleType::kF16 : ScaleType::kBF16, true, random);
        std::memcpy(data_.data() + 2 * i, &b, 2);
        weights_[i] = f16 ? f16_value(b) : bf16_value(b);
      }
      magnitudes_[i] = std::fabs(weights_[i]);
    }
  }

  double from16(uint16_t bits) const {
    return shape_.scale_type == ScaleType::kF16 ? f16_value(bits) : bf16_value(bits);
  }

  LinearShape shape_;
  int64_t rows_;
  Aligned<uint8_t> data_;
  Aligned<uint16_t> scales_;
  Aligned<uint8_t> offsets_;
  std::vector<double> weights_;
  std::vector<double> magnitudes_;
};

// Storage of prepared activations. Arrays have exactly the size the contract states, so that
// a sanitizer sees any read beyond it.
class PreparedInput {
 public:
  PreparedInput(ActivationType type, ActivationLayout layout, int64_t tokens, int64_t k,
                int64_t group)
      : tokens_(layout == ActivationLayout::kPanels ? (tokens + 15) / 16 * 16 : tokens),
        values_(static_cast<size_t>(tokens_ * k * 4), 0x81),
        scales_(count(tokens, k, group)),
        sums_(count(tokens, k, group)),
        int_sums_(count(tokens, k, group)) {
    x = {type,           layout,       tokens,          k, group, k, values_.data(),
         scales_.data(), sums_.data(), int_sums_.data()};
  }

  Activations x;

  // The value a kernel sees, read back by the definition of the layout.
  double value(int64_t token, int64_t k) const {
    if (x.type == ActivationType::kF32) {
      return static_cast<const float*>(x.values)[token * x.ld + k];
    }
    if (x.type == ActivationType::kBF16) {
      return bf16_value(static_cast<const uint16_t*>(x.values)[index(token, k, 32)]);
    }
    return double(x.scales[token * (x.k / x.group) + k / x.group]) * int8(token, k);
  }

  int int8(int64_t token, int64_t k) const {
    return static_cast<const int8_t*>(x.values)[index(token, k, x.group < 64 ? x.group : 64)];
  }

 private:
  int64_t index(int64_t token, int64_t k, int64_t step) const {
    if (x.layout == ActivationLayout::kRows) return token * x.k + k;
    return (((token / 16) * (x.k / step) + k / step) * 16 + token % 16) * step + k % step;
  }

  static size_t count(int64_t tokens, int64_t k, int64_t group) {
    return group == 0 ? 0 : static_cast<size_t>(tokens * (k / group));
  }

  int64_t tokens_;
  std::vector<uint8_t> values_;
  std::vector<float> scales_, sums_;
  std::vector<int32_t> int_sums_;
};

}  // namespace edge_infer::test
