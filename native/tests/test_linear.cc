// Every linear on every ISA of this machine against a double-precision product.
#include <cstdio>

#include "tests/linear_case.h"

namespace edge_infer::test {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of float
constexpr float kCanary = -12345.5f;

struct Worst {
  double ratio = 0;  // error / tolerance
  std::string where;
};

// One case on one ISA: prepares x, runs `kernel` and keeps the output.
class Run {
 public:
  Run(const KernelTable& table, const LinearShape& shape, const LinearCase& c, ActivationType type,
      ActivationLayout layout, const std::vector<float>& x, int64_t tokens)
      : shape_(shape),
        case_(c),
        kernel_(linear_kernel(table, shape.format, type, layout)),
        input_(type, layout, tokens, shape.k, shape.group),
        tokens_(tokens),
        blocks_((shape.n + 15) / 16),
        ldo_(16 * blocks_ + 5),
        scratch_(64 * shape.k + 65536 + 64) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* xt = x.data() + t * shape.k;
      if (type == ActivationType::kInt8) table.quantize_int8(xt, t, input_.x);
      if (type == ActivationType::kBF16) table.round_bf16(xt, t, input_.x);
      if (type == ActivationType::kF32) {
        std::memcpy(static_cast<float*>(input_.x.values) + t * shape.k, xt, 4 * shape.k);
      }
    }
  }

  // Tokens [t0, t1) x blocks [b0, b1) into an output that is otherwise all canaries.
  std::vector<float> compute(int64_t t0, int64_t t1, int64_t b0, int64_t b1) {
    std::vector<float> out(static_cast<size_t>(tokens_ * ldo_), kCanary);
    for (int i = 0; i < 64; ++i) scratch_[scratch_.size() - 64 + i] = 0x5a;
    kernel_.fn({&case_.weight, &input_.x, t0, t1, b0, b1, out.data() + t0 * ldo_ + 16 * b0, ldo_,
                scratch_.data()});
    bool clean = true;
    for (int i = 0; i < 64; ++i) clean &= scratch_[scratch_.size() - 64 + i] == 0x5a;
    CHECK(clean, "%s wrote past its scratch", label().c_str());
    return out;
  }

  bool inside(int64_t t, int64_t row, int64_t t0, int64_t t1, int64_t b0, int64_t b1) const {
    return t >= t0 && t < t1 && row >= 16 * b0 && row < 16 * b1;
  }

  // Compares the range with the reference; everything else must still be a canary.
  void check(int64_t t0, int64_t t1, int64_t b0, int64_t b1, Worst& worst) {
    const std::vector<float> out = compute(t0, t1, b0, b1);
    int wrong = 0, touched = 0;
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t row = 0; row < ldo_; ++row) {
        const float got = out[static_cast<size_t>(t * ldo_ + row)];
        if (!inside(t, row, t0, t1, b0, b1)) {
          touched += got != kCanary;
        } else if (row >= shape_.n) {
          wrong += got != 0.0f;
        } else {
          wrong += !within_tolerance(t, row, got, worst);
        }
      }
    }
    CHECK(wrong == 0, "%s: %d cells are off, worst of the kernel: %s", label().c_str(), wrong,
          worst.where.c_str());
    CHECK(touched == 0, "%s: wrote %d cells outside its range", label().c_str(), touched);
  }

  PreparedInput& input() { return input_; }
  std::string label() const {
    return std::string(kernel_.name) + " " + shape_.name() + " tokens " + std::to_string(tokens_) +
           (input_.x.layout == ActivationLayout::kPanels ? " panels" : " rows");
  }

 private:
  // Rounding errors of a sum of n terms in float stay below n * unit * sum of magnitudes,
  // in whatever order they are added. Integer products add none: there n counts groups.
  double roundings() const {
    if (shape_.group == 0) return double(shape_.k) / 4 + 8;
    const double groups = double(shape_.k / shape_.group);
    return input_.x.type == ActivationType::kInt8 ? 2 * groups + 6 : shape_.group + 2 * groups + 6;
  }

  bool within_tolerance(int64_t t, int64_t row, float got, Worst& worst) {
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < shape_.k; ++k) {
      const double x = value(t, k);
      sum += case_.value(row, k) * x;
      magnitude += case_.magnitude(row, k) * std::fabs(x);
    }
    const double tolerance = roundings() * kUnit * magnitude;
    const double error = std::fabs(got - sum);
    if (!(error <= worst.ratio * tolerance)) {
      worst.ratio = tolerance > 0 ? error / tolerance : INFINITY;
      worst.where = label() + " token " + std::to_string(t) + " row " + std::to_string(row) +
                    ": got " + std::to_string(got) + ", expected " + std::to_string(sum);
    }
    return error <= tolerance;
  }

  double value(int64_t t, int64_t k) {
    if (seen_.empty()) {
      seen_.resize(static_cast<size_t>(tokens_ * shape_.k));
      for (int64_t i = 0; i < tokens_; ++i) {
        for (int64_t j = 0; j < shape_.k; ++j) {
          seen_[static_cast<size_t>(i * shape_.k + j)] = input_.value(i, j);
        }
      }
    }
    return seen_[static_cast<size_t>(t * shape_.k + k)];
  }

  LinearShape shape_;
  const LinearCase& case_;
  const LinearKernel& kernel_;
  PreparedInput input_;
  int64_t tokens_;
  int64_t blocks_;
  int64_t ldo_;
  Aligned<uint8_t> scratch_;
  std::vector<double> seen_;
};

std::vector<float> random_inputs(int64_t tokens, int64_t k, Values values, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(static_cast<size_t>(tokens * k));
  for (float& v : x) {
    v = random.uniform(-2.0f, 2.0f);
    if (values == Values::kExtreme) v = v < 0 ? -3.0f : 3.0f;
  }
  // One sign throughout the first token: no product cancels another.
  if (values == Values::kExtreme) std::fill_n(x.begin(), k, 3.0f);
  if (tokens > 1) std::fill_n(x.begin() + k, k, 0.0f);  // token 1: scales of 0
  return x;
}

std::vector<ActivationLayout> layouts(const KernelTable& t, ActivationType type) {
  std::vector<ActivationLayout> all = {ActivationLayout::kRows};
  if (activation_layout(t, type, INT64_MAX - 1) == ActivationLayout::kPanels) {
    all.push_back(ActivationLayout::kPanels);
  }
  return all;
}

std::vector<ActivationType> types(WeightFormat format) {
  if (format > WeightFormat::kInt8) return {ActivationType::kF32};
  return {ActivationType::kInt8, ActivationType::kBF16};
}

// Tables to test: of every ISA, and those that another CPU of the same ISA would have.
std::vector<KernelTable> tables_to_test(const std::vector<Isa>& isas) {
  std::vector<KernelTable> tables;
  for (Isa isa : isas) {
    tables.push_back(kernel_table(isa));
#if defined(__x86_64__)
    if (isa < Isa::kAvx512Vnni) continue;
    tables.push_back(tables.back());
    fill_linear_avx512vnni(tables.back());
    if (cpu_features().avx512_bf16) fill_linear_avx512bf16(tables.back(), true);
    if (cpu_features().fast_bf16_products) fill_linear_avx512vnni(tables.back());
#endif
  }
  return tables;
}

// All kernels, layouts and ranges of one shape and token count.
void check_shape(const std::vector<KernelTable>& tables, const LinearShape& shape, int64_t tokens,
                 Values values, std::vector<Worst>& worst) {
  static uint64_t seed = 1;
  const LinearCase c(shape, values, ++seed);
  const std::vector<float> x = random_inputs(tokens, shape.k, values, ++seed);
  const int64_t blocks = (shape.n + 15) / 16;
  for (size_t i = 0; i < tables.size(); ++i) {
    const KernelTable& table = tables[i];
    for (ActivationType type : types(shape.format)) {
      for (ActivationLayout layout : layouts(table, type)) {
        Run run(table, shape, c, type, layout, x, tokens);
        run.check(0, tokens, 0, blocks, worst[i]);
        if (blocks > 1) run.check(0, tokens, 1, blocks, worst[i]);
        if (blocks > 2) run.check(0, tokens, 1, 2, worst[i]);
        if (tokens > 16) run.check(16, tokens, 0, blocks, worst[i]);
        if (tokens > 32) run.check(16, 32, blocks - 1, blocks, worst[i]);
      }
    }
  }
}

// One token's result must not depend on which kernel or how many tokens it ran with:
// prefill, decode and a mixed batch then agree bit for bit.
void check_same_bits(const LinearShape& shape) {
  if (!isa_available(Isa::kAvx2)) return;
  const int64_t tokens = 21, blocks = (shape.n + 15) / 16;
  const LinearCase c(shape, Values::kRandom, 77);
  const std::vector<float> x = random_inputs(tokens, shape.k, Values::kRandom, 78);
  std::vector<float> first;
  for (Isa isa : available_isas()) {
    if (isa == Isa::kScalar) continue;  // its multiplications and additions are not fused
    const KernelTable table = kernel_table(isa);
    for (ActivationLayout layout : layouts(table, ActivationType::kInt8)) {
      Run run(table, shape, c, ActivationType::kInt8, layout, x, tokens);
      const std::vector<float> out = run.compute(0, tokens, 0, blocks);
      if (first.empty()) first = out;
      CHECK(std::memcmp(first.data(), out.data(), 4 * out.size()) == 0, "%s: other bits than avx2",
            run.label().c_str());
      const std::vector<float> one = run.compute(16, 17, 0, blocks);
      const size_t at = one.size() / tokens * 16;
      CHECK(std::memcmp(first.data() + at, one.data() + at, 64 * blocks) == 0,
            "%s: one token alone gives other bits", run.label().c_str());
    }
  }
}

void check_quantize(Isa isa, int64_t group, ActivationLayout layout) {
  const KernelTable table = kernel_table(isa);
  const KernelTable scalar = kernel_table(Isa::kScalar);
  const int64_t tokens = 19, k = 256, groups = k / group;
  std::vector<float> x = random_inputs(tokens, k, Values::kRandom, 5);
  for (int64_t i = 0; i < k; ++i) x[2 * k + i] *= 1e-20f;
  x[3 * k + 7] = 1e30f;
  PreparedInput got(ActivationType::kInt8, layout, tokens, k, group);
  PreparedInput same(ActivationType::kInt8, layout, tokens, k, group);
  for (int64_t t = 0; t < tokens; ++t) {
    table.quantize_int8(x.data() + t * k, t, got.x);
    scalar.quantize_int8(x.data() + t * k, t, same.x);
  }
  int off = 0, different = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t g = 0; g < groups; ++g) {
      float amax = 0;
      int sum = 0;
      for (int64_t i = g * group; i < (g + 1) * group; ++i) {
        amax = std::max(amax, std::fabs(x[t * k + i]));
        sum += got.int8(t, i);
      }
      const float scale = got.x.scales[t * groups + g];
      off += scale != amax / 127.0f;
      off += got.x.int_sums[t * groups + g] != sum;
      off += got.x.sums[t * groups + g] != scale * float(sum);
      for (int64_t i = g * group; i < (g + 1) * group; ++i) {
        const double error = std::fabs(got.value(t, i) - x[t * k + i]);
        off += error > 0.5 * scale + 4 * kUnit * amax;
        off += std::abs(got.int8(t, i)) > 127;
        different += got.int8(t, i) != same.int8(t, i);
      }
    }
  }
  CHECK(off == 0, "quantize_int8 %s g%d: %d values are off", isa_name(isa), int(group), off);
  CHECK(different == 0, "quantize_int8 %s: %d values differ from scalar", isa_name(isa), different);
}

void check_round_bf16(Isa isa, ActivationLayout layout) {
  const KernelTable table = kernel_table(isa);
  const int64_t tokens = 19, token = 17, k = 128;
  std::vector<float> x = random_inputs(1, k, Values::kRandom, 6);
  x[0] = 1.0f + 0x1p-8f;  // halfway: to even, down
  x[1] = 1.0f + 0x3p-8f;  // halfway: to even, up
  x[2] = -0x1p-130f;
  PreparedInput got(ActivationType::kBF16, layout, tokens, k, 64);
  table.round_bf16(x.data(), token, got.x);
  CHECK(got.value(token, 0) == 1.0 && got.value(token, 1) == 1.0 + 0x1p-6, "round_bf16 %s: ties",
        isa_name(isa));
  int off = 0;
  double sum = 0, magnitude = 0;
  for (int64_t i = 0; i < k; ++i) {
    off += std::fabs(got.value(token, i) - x[i]) > 0x1p-8 * std::fabs(x[i]);
    if (i < 64) sum += got.value(token, i);
    if (i < 64) magnitude += std::fabs(got.value(token, i));
  }
  CHECK(off == 0, "round_bf16 %s: %d values are off", isa_name(isa), off);
  CHECK(std::fabs(got.x.sums[token * 2] - sum) <= 64 * kUnit * magnitude,
        "round_bf16 %s: sum %g for %g", isa_name(isa), got.x.sums[token * 2], sum);
  x[5] = NAN;
  x[9] = INFINITY;
  table.round_bf16(x.data(), token, got.x);
  CHECK(std::isnan(got.value(token, 5)) && std::isinf(got.value(token, 9)),
        "round_bf16 %s: NaN, inf", isa_name(isa));
}

// A NaN or an infinity in a token must reach its outputs, and no other token's.
void check_non_finite(const KernelTable& table) {
  const LinearShape shape = {
      WeightFormat::kInt4, GroupForm::kMinimum, ScaleType::kF16, 32, 16, 128};
  const LinearCase c(shape, Values::kRandom, 9);
  for (float bad : {NAN, INFINITY}) {
    std::vector<float> x = random_inputs(20, shape.k, Values::kRandom, 10);
    x[17 * shape.k + 40] = bad;
    for (ActivationType type : types(shape.format)) {
      for (ActivationLayout layout : layouts(table, type)) {
        Run run(table, shape, c, type, layout, x, 20);
        const std::vector<float> out = run.compute(0, 20, 0, 1);
        int wrong = 0;
        for (int64_t t = 0; t < 20; ++t) {
          for (int64_t row = 0; row < 16; ++row) {
            wrong += std::isfinite(out[t * (out.size() / 20) + row]) != (t != 17);
          }
        }
        CHECK(wrong == 0, "%s: %g in token 17, %d outputs wrong", run.label().c_str(), bad, wrong);
      }
    }
  }
}

// The invariant kernels give a token the same bits beside any number of others.
void check_invariant(KernelTable table) {
  table.bf16_panel_min_tokens = INT64_MAX;
  table.int4_w4a16 = table.int4_w4a16_invariant;
  table.int8_w8a16 = table.int8_w8a16_invariant;
  const int64_t tokens = 16;
  for (WeightFormat format : {WeightFormat::kInt4, WeightFormat::kInt8}) {
    const GroupForm form =
        format == WeightFormat::kInt4 ? GroupForm::kMinimum : GroupForm::kSymmetric;
    const LinearShape shape = {format, form, ScaleType::kF16, 32, 48, 256};
    const LinearCase c(shape, Values::kRandom, 11);
    const std::vector<float> x = random_inputs(tokens, shape.k, Values::kRandom, 12);
    Run all(table, shape, c, ActivationType::kBF16, ActivationLayout::kRows, x, tokens);
    const std::vector<float> want = all.compute(0, tokens, 0, 3);
    for (int64_t count = 1; count < tokens; ++count) {
      Run few(table, shape, c, ActivationType::kBF16, ActivationLayout::kRows, x, count);
      const std::vector<float> got = few.compute(0, count, 0, 3);
      CHECK(std::memcmp(want.data(), got.data(), 4 * got.size()) == 0,
            "%s: other bits than beside more tokens", few.label().c_str());
    }
  }
}

void run_all() {
  const std::vector<Isa> isas = isas_to_test();
  const std::vector<KernelTable> tables = tables_to_test(isas);
  std::vector<Worst> worst(tables.size());
  using enum GroupForm;
  std::vector<LinearShape> kinds;
  for (ScaleType scale : {ScaleType::kF16, ScaleType::kBF16}) {
    for (int64_t group : {32, 64, 128}) {
      for (GroupForm form : {kSymmetric, kZeroPoint, kMinimum}) {
        kinds.push_back({WeightFormat::kInt4, form, scale, group, 0, 0});
      }
      kinds.push_back({WeightFormat::kInt8, kSymmetric, scale, group, 0, 0});
    }
  }
  const int64_t token_counts[] = {1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 100};
  size_t next = 0;
  for (LinearShape shape : kinds) {
    const int64_t sizes[][2] = {{16, 128}, {40, 384}, {48, 1536}, {576, 128}, {16, 2048}};
    for (const auto& size : sizes) {
      shape.n = size[0];
      shape.k = size[1];
      check_shape(tables, shape, token_counts[next++ % 11], Values::kRandom, worst);
    }
    shape.n = 40;
    shape.k = 256;
    for (int64_t tokens : {1, 2, 17}) check_shape(tables, shape, tokens, Values::kExtreme, worst);
    if (shape.scale_type == ScaleType::kF16 && shape.group != 64) {
      for (int64_t tokens = 1; tokens <= 17; ++tokens) {
        check_shape(tables, shape, tokens, Values::kRandom, worst);
      }
    }
    check_same_bits(shape);
  }
  // More tokens and more chunks of K than the AMX kernel keeps in its scratch.
  check_shape(tables, {WeightFormat::kInt4, kMinimum, ScaleType::kF16, 32, 48, 1600}, 275,
              Values::kRandom, worst);
  for (WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF32}) {
    for (int64_t k : {1, 37, 128, 300}) {
      for (int64_t tokens : {1, 3, 5, 17}) {
        for (int64_t n : {16, 42}) {
          check_shape(tables, {format, kSymmetric, ScaleType::kF16, 0, n, k}, tokens,
                      Values::kRandom, worst);
        }
      }
    }
  }
  for (Isa isa : isas) {
    for (int64_t group : {32, 64, 128}) {
      check_quantize(isa, group, ActivationLayout::kRows);
      check_quantize(isa, group, ActivationLayout::kPanels);
    }
    check_round_bf16(isa, ActivationLayout::kRows);
    check_round_bf16(isa, ActivationLayout::kPanels);
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    check_non_finite(tables[i]);
    check_invariant(tables[i]);
    std::printf("%s: worst error is %.3f of its tolerance: %s\n", isa_name(tables[i].isa),
                worst[i].ratio, worst[i].where.c_str());
  }
}

}  // namespace
}  // namespace edge_infer::test

int main() {
  edge_infer::test::run_all();
  return edge_infer::test::finish();
}
