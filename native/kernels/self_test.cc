#include "kernels/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/table.h"

namespace edge_infer {
namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kColumns = 128;
constexpr int64_t kGroup = 64;
constexpr int64_t kTokens = 20;
constexpr uint16_t kHalf = 0x3800;  // 0.5 in f16, about 3e-5 in bf16

// 64-byte aligned bytes, filled with a fixed pattern.
class Bytes {
 public:
  explicit Bytes(size_t n) : store_(n + 64) {
    const auto address = reinterpret_cast<uintptr_t>(store_.data());
    start_ = store_.data() + (64 - address % 64) % 64;
    uint32_t state = 12345;
    for (size_t i = 0; i < n; ++i) {
      state = state * 1664525u + 1013904223u;
      start_[i] = static_cast<unsigned char>(state >> 24);
    }
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(start_);
  }

 private:
  std::vector<unsigned char> store_;
  unsigned char* start_;
};

struct LinearCase {
  const char* op;
  WeightFormat format;
  ActivationType type;
};

const LinearKernel& kernel_of(const KernelTable& t, const LinearCase& c, int64_t tokens) {
  return linear_kernel(t, c.format, c.type, activation_layout(t, c.type, tokens));
}

std::vector<float> run(const KernelTable& t, const LinearCase& c, const LinearWeight& w,
                       int64_t tokens) {
  std::vector<float> x(static_cast<size_t>(tokens * kColumns));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.37f * static_cast<float>(i));
  Bytes values(32 * kColumns * 4), scales(32 * 4 * 4), sums(32 * 4 * 4), int_sums(32 * 4 * 4);
  Bytes scratch(64 * kColumns + 65536);
  Activations a{};
  a.type = c.type;
  a.tokens = tokens;
  a.k = kColumns;
  a.group = c.type == ActivationType::kF32 ? 0 : kGroup;
  a.ld = kColumns;
  a.layout = activation_layout(t, c.type, tokens);
  a.values = values.as<void>();
  a.scales = scales.as<float>();
  a.sums = sums.as<float>();
  a.int_sums = int_sums.as<int32_t>();
  for (int64_t i = 0; i < tokens; ++i) {
    const float* row = x.data() + i * kColumns;
    if (c.type == ActivationType::kInt8) t.quantize_int8(row, i, a);
    if (c.type == ActivationType::kBF16) t.round_bf16(row, i, a);
  }
  if (c.type == ActivationType::kF32) a.values = x.data();
  std::vector<float> out(static_cast<size_t>(tokens * kRows));
  LinearArgs args{&w, &a, 0, tokens, 0, kRows / 16, out.data(), kRows, scratch.as<void>()};
  kernel_of(t, c, tokens).fn(args);
  return out;
}

void compare(const char* kernel, const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  if (!(error <= 1e-8 * norm)) {
    throw std::runtime_error(std::string("kernel ") + kernel +
                             " differs from the scalar path: relative error " +
                             std::to_string(std::sqrt(error / norm)));
  }
}

void check_linears(const KernelTable& t, std::map<std::string, std::string>* names) {
  const LinearCase cases[] = {
      {"int4_w4a8", WeightFormat::kInt4, ActivationType::kInt8},
      {"int4_w4a16", WeightFormat::kInt4, ActivationType::kBF16},
      {"int8_w8a8", WeightFormat::kInt8, ActivationType::kInt8},
      {"int8_w8a16", WeightFormat::kInt8, ActivationType::kBF16},
      {"dense_bf16", WeightFormat::kBF16, ActivationType::kF32},
      {"dense_f16", WeightFormat::kF16, ActivationType::kF32},
      {"dense_f32", WeightFormat::kF32, ActivationType::kF32},
  };
  const KernelTable& scalar = kernel_table(Isa::kScalar);
  for (const LinearCase& c : cases) {
    Bytes data(kRows * kColumns * 4), scales(kRows * kColumns / kGroup * 2);
    for (int64_t i = 0; i < kRows * kColumns / kGroup; ++i) scales.as<uint16_t>()[i] = kHalf;
    const bool quantized = c.format == WeightFormat::kInt4 || c.format == WeightFormat::kInt8;
    for (int64_t i = 0; !quantized && i < kRows * kColumns; ++i) {
      const float v = 0.01f * static_cast<float>(i % 97 - 48);
      uint32_t bits;
      std::memcpy(&bits, &v, 4);
      if (c.format == WeightFormat::kF32) data.as<float>()[i] = v;
      if (c.format == WeightFormat::kBF16) data.as<uint16_t>()[i] = uint16_t(bits >> 16);
      if (c.format == WeightFormat::kF16) data.as<uint16_t>()[i] = uint16_t(0x3000 + i % 97);
    }
    LinearWeight w{};
    w.format = c.format;
    w.n = kRows;
    w.k = kColumns;
    w.group = quantized ? kGroup : 0;
    w.data = data.as<void>();
    w.scales = quantized ? scales.as<uint16_t>() : nullptr;
    for (int64_t tokens : {int64_t{1}, kTokens}) {
      const char* name = kernel_of(t, c, tokens).name;
      compare(name, run(t, c, w, tokens), run(scalar, c, w, tokens));
      (*names)[std::string(c.op) + (tokens == 1 ? " decode" : " prefill")] = name;
    }
  }
}

std::vector<float> run_attention(const KernelTable& t, int64_t queries) {
  constexpr int64_t kHeadDim = 64, kHeads = 2, kBlock = 16, kPositions = 32;
  Bytes k(kPositions * kHeadDim * 2), v(kPositions * kHeadDim * 2), scratch(512 * 1024);
  const int32_t table[] = {1, 0};
  KvLayer kv{KvType::kBF16, kBlock, 1, kHeadDim, k.as<void>(), v.as<void>(), nullptr, nullptr};
  std::vector<float> row(kHeadDim), q(static_cast<size_t>(queries * kHeads * kHeadDim));
  for (int64_t p = 0; p < kPositions; ++p) {
    for (int64_t i = 0; i < kHeadDim; ++i) row[i] = std::sin(0.1f * float(p * 3 + i));
    t.kv_write(kv, table[p / kBlock], p % kBlock, 0, row.data(), row.data());
  }
  for (size_t i = 0; i < q.size(); ++i) q[i] = std::cos(0.3f * static_cast<float>(i));
  std::vector<float> out(q.size());
  AttentionArgs args{};
  args.kv = &kv;
  args.block_table = table;
  args.q_per_kv = kHeads;
  args.num_queries = queries;
  args.query_position = kPositions - queries;
  args.kv_end = kPositions;
  args.scale = 0.125f;
  args.q = q.data();
  args.q_stride = kHeads * kHeadDim;
  args.out = out.data();
  args.out_stride = kHeads * kHeadDim;
  args.scratch = scratch.as<void>();
  t.attention(args);
  return out;
}

// Every elementwise kernel of the table in one chain, on an odd length.
std::vector<float> run_elementwise(const KernelTable& t) {
  constexpr int64_t kLength = 70;
  std::vector<float> x(kLength), y(kLength), weight(kLength), cosines(32), sines(32);
  for (int64_t i = 0; i < kLength; ++i) {
    x[i] = std::sin(0.7f * float(i)) * 3.0f;
    weight[i] = 1.0f + 0.01f * float(i);
  }
  for (int64_t i = 0; i < 32; ++i) {
    cosines[i] = std::cos(0.2f * float(i));
    sines[i] = std::sin(0.2f * float(i));
  }
  t.rms_norm(x.data(), weight.data(), kLength, 1e-5f, y.data());
  t.rope(y.data(), cosines.data(), sines.data(), 64);
  for (GateFunction f : {GateFunction::kSilu, GateFunction::kGeluErf, GateFunction::kGeluTanh}) {
    t.gate_mul(f, x.data(), y.data(), kLength, y.data());
    t.add(x.data(), kLength, y.data());
  }
  t.scale(0.5f, kLength, y.data());
  return y;
}

}  // namespace

std::map<std::string, std::string> self_test(Isa isa) {
  if (!isa_available(isa)) {
    throw std::runtime_error(std::string("this machine cannot run ") + isa_name(isa));
  }
  const KernelTable& t = kernel_table(isa);
  const KernelTable& scalar = kernel_table(Isa::kScalar);
  std::map<std::string, std::string> names;
  check_linears(t, &names);
  for (int64_t queries : {int64_t{1}, kTokens}) {
    compare(t.attention_name, run_attention(t, queries), run_attention(scalar, queries));
  }
  names["attention"] = t.attention_name;
  compare("elementwise", run_elementwise(t), run_elementwise(scalar));
  names["elementwise"] = std::string("elementwise_") + isa_name(std::min(isa, Isa::kAvx512Vnni));
  return names;
}

}  // namespace edge_infer
