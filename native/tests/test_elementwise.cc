// The elementwise operations on every ISA of this machine, against double precision.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/table.h"
#include "tests/check.h"

namespace edge_infer::test {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of float
constexpr float kCanary = -12345.5f;

struct Named {
  const char* isa;
  KernelTable table;
};

std::vector<Named> tables() {
  std::vector<Named> all;
  for (Isa isa : isas_to_test()) {
    if (isa == Isa::kAmx) continue;  // runs what avx512vnni runs
    KernelTable t{};
    fill_elementwise_scalar(t);
#if defined(__x86_64__)
    if (isa == Isa::kAvx2) fill_elementwise_avx2(t);
    if (isa == Isa::kAvx512Vnni) fill_elementwise_avx512vnni(t);
#endif
    all.push_back({isa_name(isa), t});
  }
  return all;
}

std::vector<int64_t> lengths() {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= 67; ++n) all.push_back(n);
  for (int64_t n : {128, 1000, 4096, 11008}) all.push_back(n);
  return all;
}

// n values with a canary after them, so that writes past the end show.
std::vector<float> values(Random& random, int64_t n, float magnitude) {
  std::vector<float> x(static_cast<size_t>(n) + 1, kCanary);
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = magnitude * random.uniform(-1, 1);
  return x;
}

// Counts the cells that are off and remembers the worst.
class Comparison {
 public:
  void cell(int64_t i, double got, double want, double tolerance) {
    const double error = std::fabs(got - want);
    if (!(error <= tolerance)) ++wrong_;
    if (!(error <= worst_ * tolerance)) {
      worst_ = tolerance > 0 ? error / tolerance : INFINITY;
      where_ =
          "cell " + std::to_string(i) + ": " + std::to_string(got) + " for " + std::to_string(want);
    }
  }
  void check(const std::string& label) const {
    CHECK(wrong_ == 0, "%s: %d cells are off, worst %s (%.2f tolerances)", label.c_str(), wrong_,
          where_.c_str(), worst_);
  }

 private:
  int wrong_ = 0;
  double worst_ = 0;
  std::string where_;
};

std::string label(const Named& t, const char* op, int64_t n) {
  return std::string(t.isa) + " " + op + " n " + std::to_string(n);
}

void test_rms_norm(const Named& t) {
  Random random(1);
  for (int64_t n : lengths()) {
    for (float magnitude : {1e-4f, 1.0f, 300.0f}) {
      const std::vector<float> x = values(random, n, magnitude), w = values(random, n, 2.0f);
      std::vector<float> out(x.size(), kCanary);
      const float eps = 1e-6f;
      t.table.rms_norm(x.data(), w.data(), n, eps, out.data());
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * x[i];
      const double scale = 1 / std::sqrt(sum / double(n) + eps);
      Comparison c;
      for (int64_t i = 0; i < n; ++i) {
        const double want = x[i] * scale * w[i];
        c.cell(i, out[i], want, (8 + std::sqrt(double(n))) * kUnit * std::fabs(want));
      }
      c.check(label(t, "rms_norm", n));
      CHECK(out[n] == kCanary, "%s wrote past the end", label(t, "rms_norm", n).c_str());
      std::vector<float> in_place = x;
      t.table.rms_norm(in_place.data(), w.data(), n, eps, in_place.data());
      CHECK(std::equal(out.begin(), out.end() - 1, in_place.begin()), "%s in place differs",
            label(t, "rms_norm", n).c_str());
    }
  }
}

void test_rope(const Named& t) {
  Random random(2);
  for (int64_t half = 1; half <= 67; ++half) {
    std::vector<float> x = values(random, 2 * half, 3.0f), cos, sin;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = random.uniform(0.0f, 6.0f);
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    const std::vector<float> before = x;
    t.table.rope(x.data(), cos.data(), sin.data(), 2 * half);
    Comparison c;
    for (int64_t i = 0; i < half; ++i) {
      const double a = before[i], b = before[half + i];
      const double tolerance = 2 * kUnit * (std::fabs(a) + std::fabs(b));
      c.cell(i, x[i], a * cos[i] - b * sin[i], tolerance);
      c.cell(half + i, x[half + i], b * cos[i] + a * sin[i], tolerance);
    }
    c.check(label(t, "rope", 2 * half));
    CHECK(x[2 * half] == kCanary, "%s wrote past the end", label(t, "rope", 2 * half).c_str());
  }
}

void test_add_and_scale(const Named& t) {
  Random random(3);
  for (int64_t n : lengths()) {
    const std::vector<float> x = values(random, n, 1.0f), before = values(random, n, 1.0f);
    std::vector<float> sum = before, product = before;
    t.table.add(x.data(), n, sum.data());
    t.table.scale(0.37f, n, product.data());
    int wrong = sum[n] != kCanary || product[n] != kCanary;
    for (int64_t i = 0; i < n; ++i) {
      wrong += sum[i] != x[i] + before[i] || product[i] != 0.37f * before[i];
    }
    CHECK(wrong == 0, "%s: %d cells are off", label(t, "add, scale", n).c_str(), wrong);
  }
}

struct Gate {
  double value;
  double exponent;  // the argument of exp that decides it: its rounding is a relative error
};

Gate gate(GateFunction f, double g) {
  switch (f) {
    case GateFunction::kSilu: return {g / (1 + std::exp(-g)), g};
    case GateFunction::kGeluErf: return {g * 0.5 * std::erfc(-g * std::sqrt(0.5)), 0};
    case GateFunction::kGeluTanh: break;
  }
  const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
  return {g / (1 + std::exp(-2 * u)), 2 * u};
}

constexpr GateFunction kGates[] = {GateFunction::kSilu, GateFunction::kGeluErf,
                                   GateFunction::kGeluTanh};
constexpr const char* kGateNames[] = {"silu", "gelu_erf", "gelu_tanh"};

void test_gates(const Named& t) {
  Random random(4);
  for (int f = 0; f < 3; ++f) {
    for (int64_t n : lengths()) {
      std::vector<float> g = values(random, n, 30.0f);
      if (n > 1000) {  // an even grid, and close to zero
        for (int64_t i = 0; i < n; ++i) g[i] = -30.0f + 60.0f * float(i) / float(n - 1);
        for (int64_t i = 0; i < n; i += 3) g[i] *= 1e-3f;
      }
      const std::vector<float> up = values(random, n, 2.0f);
      std::vector<float> out(g.size(), kCanary);
      t.table.gate_mul(kGates[f], g.data(), up.data(), n, out.data());
      Comparison c;
      for (int64_t i = 0; i < n; ++i) {
        const Gate want = gate(kGates[f], g[i]);
        // Where the factor of g is subnormal only its size counts.
        const double relative = kUnit * (12 + 4 * std::max(0.0, -want.exponent));
        const double smallest = 2e-38 * std::fabs(g[i] * up[i]) + 1e-44;
        c.cell(i, out[i], want.value * up[i], relative * std::fabs(want.value * up[i]) + smallest);
      }
      c.check(label(t, kGateNames[f], n));
      CHECK(out[n] == kCanary, "%s wrote past the end", label(t, kGateNames[f], n).c_str());
    }
    std::vector<float> g, up, out(20);
    for (float x : {0.0f, 1e-30f, 80.0f, 87.5f, 88.5f, 100.0f, 1e4f, 1e15f, 1e30f, 3e38f}) {
      g.push_back(x);
      g.push_back(-x);
    }
    up.assign(g.size(), 1.0f);
    t.table.gate_mul(kGates[f], g.data(), up.data(), 20, out.data());
    for (size_t i = 0; i < g.size(); i += 2) {
      const bool positive = out[i] >= 0.5f * g[i] && out[i] <= g[i];
      const bool negative = out[i + 1] <= 0.0f && out[i + 1] >= -1e-30f;
      CHECK(positive && negative, "%s %s of +-%g gives %g and %g", t.isa, kGateNames[f], g[i],
            out[i], out[i + 1]);
    }
    const float nan = NAN, one = 1.0f;
    float result = 0.0f;
    t.table.gate_mul(kGates[f], &nan, &one, 1, &result);
    CHECK(std::isnan(result), "%s %s lost a NaN", t.isa, kGateNames[f]);
  }
}

double f16_value(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

double bf16_value(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

double scale_value(ScaleType type, uint16_t bits) {
  return type == ScaleType::kF16 ? f16_value(bits) : bf16_value(bits);
}

// Bits of a number of a few units in f16 or bf16.
uint16_t scale_bits(Random& random, ScaleType type) {
  const uint16_t sign = random.below(2) ? 0x8000 : 0;
  if (type == ScaleType::kF16) return uint16_t(sign | (random.below(0x4800)));  // and subnormals
  return uint16_t(sign | (0x3c00 + random.below(0x480)));
}

// Packed rows from values and scales that are known one by one.
void test_embed_packed(const Named& t, WeightFormat format, GroupForm form, ScaleType type,
                       int64_t group) {
  Random random(6);
  const bool int4 = format == WeightFormat::kInt4;
  const int64_t n = 37, rows = 48, k = 3 * group, groups = 3;
  Aligned<uint8_t> data(rows * k / (int4 ? 2 : 1)), zeros(rows * groups);
  Aligned<uint16_t> scales(rows * groups), mins(rows * groups);
  std::vector<double> want(static_cast<size_t>(rows * k));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t block = row / 16, r = row % 16;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = (block * groups + i / group) * 16 + r;
      if (i % group == 0) {
        scales[at] = scale_bits(random, type);
        mins[at] = scale_bits(random, type);
        zeros[at] = uint8_t(random.below(17));
      }
      const int64_t q = random.below(int4 ? 16 : 256);
      if (int4) {
        uint8_t& byte = data[block * 8 * k + i / 8 * 64 + 4 * r + i % 4];
        byte = uint8_t(byte | (i % 8 < 4 ? q : q << 4));
      } else {
        data[block * 16 * k + i / 4 * 64 + 4 * r + i % 4] = uint8_t(q);
      }
      const double scale = scale_value(type, scales[at]);
      double& value = want[static_cast<size_t>(row * k + i)];
      if (form == GroupForm::kSymmetric) value = scale * double(q - (int4 ? 8 : 128));
      if (form == GroupForm::kZeroPoint) value = scale * double(q - zeros[at]);
      if (form == GroupForm::kMinimum) value = scale * double(q) + scale_value(type, mins[at]);
    }
  }
  const void* offsets = form == GroupForm::kZeroPoint ? static_cast<void*>(zeros.data())
                        : form == GroupForm::kMinimum ? static_cast<void*>(mins.data())
                                                      : nullptr;
  const LinearWeight w{format, form, type, n, k, group, data.data(), scales.data(), offsets};
  Comparison c;
  for (int64_t row = 0; row < n; ++row) {
    std::vector<float> out(static_cast<size_t>(k) + 1, kCanary);
    t.table.embed_row(w, row, out.data());
    for (int64_t i = 0; i < k; ++i) {
      const double value = want[static_cast<size_t>(row * k + i)];
      // One rounding, and of the product too where a minimum is added without fma.
      const uint16_t scale = scales[(row / 16 * groups + i / group) * 16 + row % 16];
      const double product =
          form == GroupForm::kMinimum ? 15 * std::fabs(scale_value(type, scale)) : 0;
      c.cell(row * k + i, out[static_cast<size_t>(i)], value,
             kUnit * (std::fabs(value) + product) + 1e-44);
    }
    CHECK(out.back() == kCanary, "%s embed_row wrote past the end", t.isa);
  }
  c.check(label(t, int4 ? "embed_row int4 form" : "embed_row int8 form", int(form)));
}

double dense_value(WeightFormat format, const uint8_t* p) {
  float x = 0.0f;
  uint16_t bits = 0;
  if (format == WeightFormat::kF32) {
    std::memcpy(&x, p, 4);
    return x;
  }
  std::memcpy(&bits, p, 2);
  return format == WeightFormat::kF16 ? f16_value(bits) : bf16_value(bits);
}

void test_embed_dense(const Named& t, WeightFormat format) {
  Random random(8);
  for (int64_t k = 1; k <= 67; ++k) {
    const int64_t n = 5, bytes = format == WeightFormat::kF32 ? 4 : 2;
    // Off by one element from the allocation's alignment, as in a file.
    std::vector<uint8_t> data(static_cast<size_t>((n * k + 1) * bytes));
    uint8_t* first = data.data() + bytes;
    for (int64_t i = 0; i < n * k; ++i) {
      const float x = random.uniform(-3.0f, 3.0f);
      const uint16_t bits =
          scale_bits(random, format == WeightFormat::kF16 ? ScaleType::kF16 : ScaleType::kBF16);
      if (bytes == 4) {
        std::memcpy(first + 4 * i, &x, 4);
      } else {
        std::memcpy(first + 2 * i, &bits, 2);
      }
    }
    const LinearWeight w{format, GroupForm::kSymmetric, ScaleType::kF16, n, k, 0, first, nullptr,
                         nullptr};
    int wrong = 0;
    for (int64_t row = 0; row < n; ++row) {
      std::vector<float> out(static_cast<size_t>(k) + 1, kCanary);
      t.table.embed_row(w, row, out.data());
      for (int64_t i = 0; i < k; ++i) {
        const double want = dense_value(format, first + (row * k + i) * bytes);
        wrong += out[static_cast<size_t>(i)] != want;
      }
      wrong += out.back() != kCanary;
    }
    CHECK(wrong == 0, "%s: %d cells are off", label(t, "embed_row dense", k).c_str(), wrong);
  }
}

int run() {
  for (const Named& t : tables()) {
    test_rms_norm(t);
    test_rope(t);
    test_add_and_scale(t);
    test_gates(t);
    for (ScaleType type : {ScaleType::kF16, ScaleType::kBF16}) {
      for (int64_t group : {32, 64, 128}) {
        for (GroupForm form : {GroupForm::kSymmetric, GroupForm::kZeroPoint, GroupForm::kMinimum}) {
          test_embed_packed(t, WeightFormat::kInt4, form, type, group);
        }
        test_embed_packed(t, WeightFormat::kInt8, GroupForm::kSymmetric, type, group);
      }
    }
    for (WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF32}) {
      test_embed_dense(t, format);
    }
  }
  return finish();
}

}  // namespace
}  // namespace edge_infer::test

int main() { return edge_infer::test::run(); }
