// Attention and its merge on every ISA of this machine, against the definition in double
// precision over the values that the cache really holds.
#include <algorithm>
#include <cstring>
#include <deque>
#include <string>

#include "tests/attention_case.h"

namespace edge_infer::test {
namespace {

constexpr float kCanary = -12345.5f;
constexpr int64_t kScratchBytes = 512 * 1024;

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

int run() {
  std::deque<Runner> runners;
  for (const KernelTable& t : attention_tables()) runners.emplace_back(t);
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
