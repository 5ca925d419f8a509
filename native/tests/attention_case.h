// What the attention tests share: a paged cache whose values can be read back, a sequence in
// it, and attention from the definition in double precision.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/table.h"
#include "tests/check.h"

namespace edge_infer::test {

constexpr double kUnit = 0x1p-24;  // unit roundoff of float

inline std::vector<KernelTable> attention_tables() {
  std::vector<KernelTable> all;
  for (Isa isa : isas_to_test()) {
    if (isa == Isa::kAmx) continue;  // runs what avx512vnni runs
    KernelTable t{};
    fill_attention_scalar(t);
#if defined(__x86_64__)
    if (isa == Isa::kAvx2) fill_attention_avx2(t);
    if (isa == Isa::kAvx512Vnni) fill_attention_avx512vnni(t);
#endif
    all.push_back(t);
  }
  return all;
}

inline const char* type_name(KvType type) {
  const char* names[] = {"f32", "f16", "bf16", "int8"};
  return names[static_cast<int>(type)];
}

inline int64_t type_bytes(KvType type) {
  const int64_t bytes[] = {4, 2, 2, 1};
  return bytes[static_cast<int>(type)];
}

inline double f16_value(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return mantissa != 0 ? NAN : INFINITY;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

inline double bf16_value(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// A cache whose unwritten slots are NaN (or, for int8, have NaN scales).
class Cache {
 public:
  Cache(KvType type, int64_t num_blocks, int64_t heads, int64_t block_size, int64_t head_dim)
      : rows_(num_blocks * heads * block_size),
        k_(rows_ * head_dim * type_bytes(type)),
        v_(rows_ * head_dim * type_bytes(type)),
        k_scales_(rows_),
        v_scales_(rows_) {
    const bool scaled = type == KvType::kInt8;
    kv = {type,
          block_size,
          heads,
          head_dim,
          k_.data(),
          v_.data(),
          scaled ? k_scales_.data() : nullptr,
          scaled ? v_scales_.data() : nullptr};
    std::memset(k_.data(), 0xff, static_cast<size_t>(k_.size()));
    std::memset(v_.data(), 0xff, static_cast<size_t>(v_.size()));
    for (int64_t i = 0; i < rows_; ++i) k_scales_[i] = v_scales_[i] = NAN;
  }

  int64_t row(int64_t block, int64_t head, int64_t slot) const {
    return (block * kv.num_kv_heads + head) * kv.block_size + slot;
  }
  double k(int64_t row, int64_t i) const { return value(k_, k_scales_, row, i); }
  double v(int64_t row, int64_t i) const { return value(v_, v_scales_, row, i); }
  const uint8_t* k_bytes() { return k_.data(); }
  const uint8_t* v_bytes() { return v_.data(); }
  int64_t rows() const { return rows_; }

  KvLayer kv;

 private:
  using Bytes = Aligned<uint8_t>;
  using Floats = Aligned<float>;

  double value(const Bytes& bytes, const Floats& scales, int64_t row, int64_t i) const {
    const uint8_t* p =
        const_cast<Bytes&>(bytes).data() + (row * kv.head_dim + i) * type_bytes(kv.type);
    if (kv.type == KvType::kF32) {
      float f;
      std::memcpy(&f, p, 4);
      return f;
    }
    if (kv.type == KvType::kInt8) {
      return static_cast<double>(static_cast<int8_t>(*p)) * const_cast<Floats&>(scales)[row];
    }
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return kv.type == KvType::kF16 ? f16_value(bits) : bf16_value(bits);
  }

  int64_t rows_;
  Bytes k_, v_;
  Floats k_scales_, v_scales_;
};

struct Shape {
  KvType type;
  int64_t head_dim, q_per_kv, num_queries, query_position, window, block_size, kv_heads;
  float magnitude;  // of the queries
  std::string name() const {
    return std::string(type_name(type)) + " head_dim " + std::to_string(head_dim) + " q_per_kv " +
           std::to_string(q_per_kv) + " queries " + std::to_string(num_queries) + " from " +
           std::to_string(query_position) + " window " + std::to_string(window) + " block " +
           std::to_string(block_size);
  }
};

// One sequence with its cache, queries and the reference.
class Case {
 public:
  Case(const KernelTable& writer, const Shape& shape, Random& random)
      : s(shape),
        kv_end(shape.query_position + shape.num_queries),
        kv_head(random.below(shape.kv_heads)),
        num_blocks_((kv_end + shape.block_size - 1) / shape.block_size),
        cache(shape.type, num_blocks_ + 2, shape.kv_heads, shape.block_size, shape.head_dim),
        block_table(static_cast<size_t>(num_blocks_ + 2)),
        q_stride(shape.q_per_kv * shape.head_dim + 7),
        q(static_cast<size_t>(shape.num_queries * q_stride)) {
    std::iota(block_table.begin(), block_table.end(), 0);
    for (size_t i = block_table.size() - 1; i > 0; --i) {
      std::swap(block_table[i], block_table[static_cast<size_t>(random.below(int64_t(i) + 1))]);
    }
    std::vector<float> k(static_cast<size_t>(s.head_dim)), v(k);
    for (int64_t p = 0; p < kv_end; ++p) {
      for (float& x : k) x = random.uniform(-2.0f, 2.0f);
      for (float& x : v) x = random.uniform(-2.0f, 2.0f);
      writer.kv_write(cache.kv, block_table[static_cast<size_t>(p / s.block_size)],
                      p % s.block_size, kv_head, k.data(), v.data());
    }
    // Blocks that no query sees any more may be anywhere.
    const int64_t seen = s.window > 0 ? s.query_position - s.window + 1 : 0;
    for (int64_t b = 0; (b + 1) * s.block_size <= seen; ++b) {
      block_table[static_cast<size_t>(b)] = 1 << 30;
    }
    for (float& x : q) x = shape.magnitude * random.uniform(-1.0f, 1.0f);
    scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  }

  AttentionArgs args(int64_t kv_begin, int64_t end) {
    AttentionArgs a{};
    a.kv = &cache.kv;
    a.block_table = block_table.data();
    a.kv_head = kv_head;
    a.q_per_kv = s.q_per_kv;
    a.num_queries = s.num_queries;
    a.query_position = s.query_position;
    a.kv_begin = kv_begin;
    a.kv_end = end;
    a.window = s.window;
    a.scale = scale;
    a.q = q.data();
    a.q_stride = q_stride;
    return a;
  }

  // want[(i * q_per_kv + h) * head_dim ..] and what an error may be, from the definition.
  void reference(int64_t kv_begin, int64_t end, std::vector<double>& want,
                 std::vector<double>& tolerance) const {
    const int64_t d = s.head_dim;
    want.assign(static_cast<size_t>(s.num_queries * s.q_per_kv * d), 0.0);
    tolerance.assign(want.size(), 0.0);
    for (int64_t i = 0; i < s.num_queries; ++i) {
      const int64_t position = s.query_position + i;
      const int64_t first = std::max(kv_begin, s.window > 0 ? position - s.window + 1 : int64_t{0});
      const int64_t last = std::min(end, position + 1);
      if (first >= last) continue;
      std::vector<double> k, v;
      for (int64_t p = first; p < last; ++p) {
        const int64_t row = cache.row(block_table[static_cast<size_t>(p / s.block_size)], kv_head,
                                      p % s.block_size);
        for (int64_t j = 0; j < d; ++j) k.push_back(cache.k(row, j));
        for (int64_t j = 0; j < d; ++j) v.push_back(cache.v(row, j));
      }
      for (int64_t h = 0; h < s.q_per_kv; ++h) {
        attend(q.data() + i * q_stride + h * d, k, v, last - first,
               want.data() + (i * s.q_per_kv + h) * d, tolerance.data() + (i * s.q_per_kv + h) * d);
      }
    }
  }

  Shape s;
  int64_t kv_end;
  int64_t kv_head;

 private:
  int64_t num_blocks_;

 public:
  Cache cache;
  std::vector<int32_t> block_table;
  int64_t q_stride;
  std::vector<float> q;
  float scale;

 private:
  void attend(const float* query, const std::vector<double>& k, const std::vector<double>& v,
              int64_t n, double* want, double* tolerance) const {
    const int64_t d = s.head_dim;
    std::vector<double> p(static_cast<size_t>(n));
    double max = -INFINITY, min = INFINITY, norm = 0, sum = 0;
    for (int64_t t = 0; t < n; ++t) {
      double dot = 0, magnitudes = 0;
      for (int64_t j = 0; j < d; ++j) {
        dot += static_cast<double>(query[j]) * k[static_cast<size_t>(t * d + j)];
        magnitudes += std::fabs(query[j] * k[static_cast<size_t>(t * d + j)]);
      }
      p[static_cast<size_t>(t)] = dot * scale;
      max = std::max(max, dot * scale);
      min = std::min(min, dot * scale);
      norm = std::max(norm, magnitudes * scale);
    }
    for (double& x : p) sum += x = std::exp(x - max);
    // A dot product of d terms is off by about sqrt(d) roundoffs of the sum of magnitudes, and
    // that is the relative error of a weight; so are roundings of score - max. Sums over
    // positions add sqrt(n) roundoffs.
    const double relative =
        kUnit * (std::sqrt(double(d)) * norm + (max - min) + 4 + std::sqrt(double(n)));
    for (int64_t j = 0; j < d; ++j) {
      double value = 0, magnitude = 0;
      for (int64_t t = 0; t < n; ++t) {
        const double term = p[static_cast<size_t>(t)] * v[static_cast<size_t>(t * d + j)];
        value += term;
        magnitude += std::fabs(term);
      }
      want[j] = value / sum;
      tolerance[j] = relative * magnitude / sum + 1e-30;
    }
  }
};

}  // namespace edge_infer::test
