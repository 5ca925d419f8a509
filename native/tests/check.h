// The little that the native tests need: counted checks with the worst cell printed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "isa/isa.h"

namespace edge_infer::test {

inline int g_passed = 0;
inline int g_failed = 0;
inline int g_skipped = 0;

#define CHECK(cond, ...)                                            \
  do {                                                              \
    if (cond) {                                                     \
      ++::edge_infer::test::g_passed;                               \
    } else {                                                        \
      ++::edge_infer::test::g_failed;                               \
      std::printf("FAILED %s:%d: %s: ", __FILE__, __LINE__, #cond); \
      std::printf(__VA_ARGS__);                                     \
      std::printf("\n");                                            \
    }                                                               \
  } while (0)

// Small, seeded and the same on every platform, so that a failure replays.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float uniform(float lo, float hi) {  // [lo, hi)
    return lo + (hi - lo) * static_cast<float>(bits() >> 40) * (1.0f / 16777216.0f);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

// 64-byte aligned storage.
template <class T>
class Aligned {
 public:
  explicit Aligned(int64_t n) : n_(n) {
    const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + 127) / 64 * 64;
    p_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    for (int64_t i = 0; i < n; ++i) p_[i] = T{};
  }
  ~Aligned() { std::free(p_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  T* data() { return p_; }
  T& operator[](int64_t i) { return p_[i]; }
  int64_t size() const { return n_; }

 private:
  T* p_;
  int64_t n_;
};

// Every ISA this machine can run; the ones it lacks are named, never silent.
inline std::vector<Isa> isas_to_test() {
  std::vector<Isa> isas = available_isas();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAmx}) {
    if (!isa_available(isa)) {
      ++g_skipped;
      std::printf("skipped: this machine has no %s\n", isa_name(isa));
    }
  }
  return isas;
}

inline int finish() {
  std::printf("%d passed, %d failed, %d skipped\n", g_passed, g_failed, g_skipped);
  return g_failed == 0 && g_passed > 0 ? 0 : 1;
}

}  // namespace edge_infer::test
