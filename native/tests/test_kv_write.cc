// The cache writes on every ISA of this machine, against rounding in double precision.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/attention_case.h"

namespace edge_infer::test {
namespace {

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
  for (const KernelTable& t : attention_tables()) {
    test_write(t);
    test_write_nan(t);
  }
  return finish();
}

}  // namespace
}  // namespace edge_infer::test

int main() { return edge_infer::test::run(); }
