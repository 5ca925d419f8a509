// Attention, its merge and the cache writes on every ISA of this machine, against the
// definition in double precision over the values that the cache really holds.
#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>

#include "kernels/table.h"
#include "tests/check.h"

namespace edge_infer::test {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of float
constexpr float kCanary = -12345.5f;
constexpr int64_t kScratchBytes = 512 * 1024;

std::vector<KernelTable> tables() {
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

const char* type_name(KvType type) {
  const char* names[] = {"f32", "f16", "bf16", "int8"};
  return names[static_cast<int>(type)];
}

int64_t type_bytes(KvType type) {
  const int64_t bytes[] = {4, 2, 2, 1};
  return bytes[static_cast<int>(type)];
}

double f16_value(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return mantissa != 0 ? NAN : INFINITY;
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

struct Worst {
  double ratio = 0;  // error / tolerance
  std::string where = "none";
};

void compare(const Case& c, const std::vector<float>& out, int64_t out_stride,
             const std::vector<double>& want, const std::vector<double>& tolerance,
             const std::string& label, Worst& worst) {
  const int64_t width = c.s.q_per_kv * c.s.head_dim;
  int64_t wrong = 0, touched = 0;
  for (int64_t i = 0; i < c.s.num_queries; ++i) {
    for (int64_t j = 0; j < out_stride; ++j) {
      const float got = out[static_cast<size_t>(i * out_stride + j)];
      if (j >= width) {
        touched += got != kCanary;
        continue;
      }
      const size_t cell = static_cast<size_t>(i * width + j);
      const double error = std::fabs(got - want[cell]);
      const bool good = tolerance[cell] == 0 ? got == 0.0f : error <= tolerance[cell];
      wrong += !good;
      const double ratio = tolerance[cell] == 0 ? (good ? 0 : INFINITY) : error / tolerance[cell];
      if (!(ratio <= worst.ratio)) {
        worst.ratio = ratio;
        worst.where = label + " query " + std::to_string(i) + " column " + std::to_string(j) +
                      ": " + std::to_string(got) + " for " + std::to_string(want[cell]);
      }
    }
  }
  CHECK(wrong == 0, "%s: %d cells are off, worst so far: %s", label.c_str(), int(wrong),
        worst.where.c_str());
  CHECK(touched == 0, "%s: wrote %d cells outside its rows", label.c_str(), int(touched));
}

class Runner {
 public:
  explicit Runner(const KernelTable& table) : table_(table), scratch_(kScratchBytes + 64) {}

  // The result of one call over [kv_begin, kv_end).
  std::vector<float> whole(Case& c, int64_t kv_begin, int64_t kv_end, int64_t out_stride) {
    std::vector<float> out(static_cast<size_t>(c.s.num_queries * out_stride), kCanary);
    AttentionArgs a = c.args(kv_begin, kv_end);
    a.out = out.data();
    a.out_stride = out_stride;
    call(a);
    return out;
  }

  // The same in parts, merged.
  std::vector<float> merged(Case& c, const std::vector<int64_t>& bounds, int64_t out_stride) {
    const int64_t rows = c.s.num_queries * c.s.q_per_kv, size = c.s.head_dim + 2;
    const int64_t parts = static_cast<int64_t>(bounds.size()) - 1;
    std::vector<float> partial(static_cast<size_t>(parts * rows * size + 1), kCanary);
    for (int64_t p = 0; p < parts; ++p) {
      AttentionArgs a = c.args(bounds[static_cast<size_t>(p)], bounds[static_cast<size_t>(p + 1)]);
      a.partial = partial.data() + p * rows * size;
      call(a);
      check_empty_rows(c, a);
    }
    CHECK(partial.back() == kCanary, "%s: wrote past the partial rows", c.s.name().c_str());
    std::vector<float> out(static_cast<size_t>(c.s.num_queries * out_stride), kCanary);
    std::vector<float> dense(static_cast<size_t>(rows * c.s.head_dim));
    table_.attention_merge(partial.data(), parts, rows, c.s.head_dim, dense.data(), c.s.head_dim);
    for (int64_t i = 0; i < c.s.num_queries; ++i) {
      const int64_t width = c.s.q_per_kv * c.s.head_dim;
      std::copy_n(dense.begin() + i * width, width, out.begin() + i * out_stride);
    }
    return out;
  }

  const KernelTable& table() const { return table_; }
  Worst worst;

 private:
  void call(AttentionArgs& a) {
    // What an earlier call left must not matter.
    std::memset(scratch_.data(), 0xff, kScratchBytes);
    std::memset(scratch_.data() + kScratchBytes, 0x5a, 64);
    a.scratch = scratch_.data();
    table_.attention(a);
    bool clean = true;
    for (int i = 0; i < 64; ++i) clean &= scratch_[kScratchBytes + i] == 0x5a;
    CHECK(clean, "%s wrote past its scratch", table_.attention_name);
  }

  void check_empty_rows(const Case& c, const AttentionArgs& a) {
    const int64_t d = c.s.head_dim;
    for (int64_t r = 0; r < c.s.num_queries * c.s.q_per_kv; ++r) {
      const int64_t position = a.query_position + r / a.q_per_kv;
      const int64_t first = a.window > 0 ? position - a.window + 1 : 0;
      if (std::max(a.kv_begin, first) < std::min(a.kv_end, position + 1)) continue;
      const float* row = a.partial + r * (d + 2);
      bool empty = row[d] == -INFINITY && row[d + 1] == 0.0f;
      for (int64_t i = 0; i < d; ++i) empty &= row[i] == 0.0f;
      CHECK(empty, "%s %s: row %d sees nothing", table_.attention_name, c.s.name().c_str(), int(r));
    }
  }

  KernelTable table_;
  Aligned<uint8_t> scratch_;
};

void test_case(std::deque<Runner>& runners, const Shape& shape, Random& random) {
  Case c(runners[0].table(), shape, random);
  std::vector<double> want, tolerance;
  const int64_t out_stride = shape.q_per_kv * shape.head_dim + 5;
  // All positions, and a range in the middle that some rows may not see at all.
  std::vector<int64_t> bounds = {0, c.kv_end};
  for (int64_t cuts = random.below(5); cuts > 0; --cuts)
    bounds.push_back(random.below(c.kv_end + 1));
  std::sort(bounds.begin(), bounds.end());
  const int64_t begin = random.below(c.kv_end), end = begin + random.below(c.kv_end - begin + 1);
  c.reference(0, c.kv_end, want, tolerance);
  for (Runner& r : runners) {
    const std::string label = std::string(r.table().attention_name) + " " + shape.name();
    compare(c, r.whole(c, 0, c.kv_end, out_stride), out_stride, want, tolerance, label, r.worst);
    compare(c, r.merged(c, bounds, out_stride), out_stride, want, tolerance, label + " merged",
            r.worst);
  }
  c.reference(begin, end, want, tolerance);
  for (Runner& r : runners) {
    const std::string label = std::string(r.table().attention_name) + " " + shape.name() + " of [" +
                              std::to_string(begin) + ", " + std::to_string(end) + ")";
    compare(c, r.whole(c, begin, end, out_stride), out_stride, want, tolerance, label, r.worst);
  }
}

// Every cache type, head size and number of queries; the rest at random.
void test_shapes(std::deque<Runner>& runners) {
  Random random(7);
  const int64_t groups[] = {1, 2, 3, 4, 8, 5, 20}, blocks[] = {8, 16, 32, 64};
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kInt8}) {
    for (int64_t head_dim : {16, 24, 64, 72, 80, 96, 128, 256}) {
      for (int64_t queries : {1, 1, 2, 7, 16, 33, 100}) {
        Shape s{};
        s.type = type;
        s.head_dim = head_dim;
        s.num_queries = queries;
        s.q_per_kv = groups[random.below(queries > 32 ? 4 : 7)];
        s.query_position = random.below(3) == 0 ? 0 : random.below(200);
        s.window = random.below(2) == 0 ? 0 : 1 + random.below(90);
        s.block_size = blocks[random.below(4)];
        s.kv_heads = 1 + random.below(3);
        s.magnitude = 2.0f;
        test_case(runners, s, random);
      }
    }
  }
}

// More rows than share one tile, and long contexts.
void test_large(std::deque<Runner>& runners) {
  Random random(11);
  test_case(runners, {KvType::kF16, 16, 3, 300, 21, 0, 16, 1, 2.0f}, random);
  test_case(runners, {KvType::kInt8, 64, 8, 70, 130, 50, 16, 1, 2.0f}, random);
  test_case(runners, {KvType::kBF16, 64, 3, 1, 1999, 0, 16, 2, 2.0f}, random);
  test_case(runners, {KvType::kF32, 32, 2, 3, 1500, 700, 64, 1, 2.0f}, random);
}

// Scores of some 10000, of which exp overflows and exp of the negative is zero.
void test_large_scores(std::deque<Runner>& runners) {
  Random random(13);
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kInt8}) {
    for (int64_t queries : {1, 20}) {
      test_case(runners, {type, 64, 2, queries, 100, 0, 16, 1, 2000.0f}, random);
    }
  }
}

// x rounded to nearest even with `bits` significant bits and no quantum below `smallest`.
double rounded(double x, int bits, double smallest) {
  int exponent;
  std::frexp(x, &exponent);
  const double quantum = std::max(std::ldexp(1.0, exponent - bits), smallest);
  return std::nearbyint(x / quantum) * quantum;
}

void test_write(const KernelTable& t) {
  Random random(5);
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kInt8}) {
    for (int64_t d : {16, 24, 64, 80, 256}) {
      for (int64_t pass = 0; pass < 24; ++pass) {
        Cache cache(type, 3, 2, 8, d);
        std::vector<float> x[2];
        float amax[2] = {};
        for (int side = 0; side < 2; ++side) {
          x[side].resize(static_cast<size_t>(d));
          const float magnitude = std::ldexp(1.0f, static_cast<int>(random.below(40)) - 24);
          for (float& value : x[side]) {
            value = pass == 0 ? 0.0f : magnitude * random.uniform(-1.0f, 1.0f);
            // Ties of the 16-bit formats: odd multiples of half their quantum.
            if (pass % 3 == 1)
              value = 1.0f + std::ldexp(float(2 * random.below(64) + 1),
                                        -12 + 4 * (type == KvType::kBF16));
            if (pass % 6 == 5 && type == KvType::kF16) value *= 1e9f;
            amax[side] = std::max(amax[side], std::fabs(value));
          }
        }
        t.kv_write(cache.kv, 1, 3, 1, x[0].data(), x[1].data());
        const int64_t row = cache.row(1, 1, 3);
        int wrong = 0;
        for (int side = 0; side < 2; ++side) {
          for (int64_t i = 0; i < d; ++i) {
            const double value = x[side][static_cast<size_t>(i)];
            const double got = side == 0 ? cache.k(row, i) : cache.v(row, i);
            if (type == KvType::kF32) wrong += got != value;
            if (type == KvType::kBF16) wrong += got != rounded(value, 8, 0x1p-133);
            if (type == KvType::kF16) {
              wrong += got != std::clamp(rounded(value, 11, 0x1p-24), -65504.0, 65504.0);
            }
            if (type == KvType::kInt8) {
              const float scale = side == 0 ? cache.kv.k_scales[row] : cache.kv.v_scales[row];
              wrong += scale != amax[side] / 127.0f;
              wrong += !(std::fabs(got - value) <= 0.50001 * scale);
            }
          }
        }
        CHECK(wrong == 0, "%s kv_write %s head_dim %d pass %d: %d values are off", t.attention_name,
              type_name(type), int(d), int(pass), wrong);
        int64_t touched = 0;
        const int64_t bytes = d * type_bytes(type);
        for (int64_t i = 0; i < cache.rows() * bytes; ++i) {
          if (i / bytes != row) touched += cache.k_bytes()[i] != 0xff || cache.v_bytes()[i] != 0xff;
        }
        CHECK(touched == 0, "%s kv_write %s head_dim %d touched %d bytes of other rows",
              t.attention_name, type_name(type), int(d), int(touched));
      }
    }
  }
}

// A NaN must stay visible, whatever the cache holds.
void test_write_nan(const KernelTable& t) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kInt8}) {
    for (int64_t at : {0, 5, 23}) {
      Cache cache(type, 1, 1, 8, 24);
      std::vector<float> x(24, 1.0f);
      x[static_cast<size_t>(at)] = NAN;
      t.kv_write(cache.kv, 0, 0, 0, x.data(), x.data());
      CHECK(std::isnan(cache.k(0, at)) && std::isnan(cache.v(0, at)), "%s kv_write %s lost a NaN",
            t.attention_name, type_name(type));
    }
  }
}

int run() {
  const std::vector<KernelTable> all = tables();
  std::deque<Runner> runners;
  for (const KernelTable& t : all) {
    test_write(t);
    test_write_nan(t);
  }
  for (const KernelTable& t : all) runners.emplace_back(t);
  test_shapes(runners);
  test_large(runners);
  test_large_scores(runners);
  for (const Runner& r : runners) {
    std::printf("%-24s worst error / tolerance %.3f: %s\n", r.table().attention_name, r.worst.ratio,
                r.worst.where.c_str());
  }
  return finish();
}

}  // namespace
}  // namespace edge_infer::test

int main() { return edge_infer::test::run(); }
