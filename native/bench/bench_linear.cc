// Speed of the linear kernels on this machine, beside the read bandwidth it has.
//
//   bench_linear [--isa NAME] [--format int4|int8] [--form symmetric|zero|min] [--group G]
//                [--n N] [--k K] [--tokens M] [--threads T] [--blocks B] [--chunk C]
//
// Without options: the table of M = 1 and M = 512 on 1 and 2 threads. Weights are random and
// many copies are used in turn, so that every pass reads them from memory. Chunks of
// `--blocks` row blocks and `--chunk` tokens are handed out as the executor does.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/table.h"
#include "tests/check.h"

namespace edge_infer::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPoolBytes = int64_t{768} << 20;  // beyond any last-level cache here
constexpr std::chrono::milliseconds kDuration{1000};

struct Options {
  Isa isa = selected_isa();
  WeightFormat format = WeightFormat::kInt4;
  GroupForm form = GroupForm::kSymmetric;
  ActivationType activations = ActivationType::kInt8;
  int64_t group = 128, n = 12288, k = 2048, tokens = 0, threads = 0, blocks = 0, chunk = 256;
};

// The memory that weights are read from. Any bytes are packed weights; here none is 0.
uint8_t* weight_pool() {
  static Aligned<uint8_t>* pool = [] {
    auto* p = new Aligned<uint8_t>(kPoolBytes);
    Random random(1);
    for (int64_t i = 0; i + 8 <= kPoolBytes; i += 8) {
      const uint64_t bits = random.bits() | 0x0101010101010101;
      std::memcpy(p->data() + i, &bits, 8);
    }
    return p;
  }();
  return pool->data();
}

struct Figures {
  double median, best;  // seconds per pass, or bytes per second
};

// Runs `work(thread, pass)` on all threads until the time is up. Passes start together, as
// the steps of the engine do, and are timed one by one: the best one is what the machine
// does when nobody else uses it.
template <class Work>
Figures time_passes(int64_t threads, const Work& work) {
  std::atomic<int64_t> arrived{0};
  std::atomic<int64_t> last_pass{INT64_MAX};
  std::vector<double> seconds;
  auto wait_for_all = [&](int64_t round) {
    arrived.fetch_add(1);
    while (arrived.load() < threads * round) {
    }
  };
  const Clock::time_point start = Clock::now();
  auto body = [&](int64_t thread) {
    for (int64_t pass = 0; pass <= last_pass.load(); ++pass) {
      const Clock::time_point begin = Clock::now();  // before any thread can have begun
      wait_for_all(2 * pass + 1);
      work(thread, pass);
      if (thread == 0 && pass > 1 && Clock::now() - start > kDuration) last_pass.store(pass);
      wait_for_all(2 * pass + 2);
      if (thread == 0 && pass > 0) {  // the first one warms up
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
    }
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; ++t) others.emplace_back(body, t);
  body(0);
  for (std::thread& t : others) t.join();
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

// The C library's memchr reads with the widest registers there are; the pool has no 0 to find.
Figures read_bandwidth(int64_t threads) {
  const uint8_t* pool = weight_pool();
  constexpr int64_t kPass = 64 << 20;
  std::atomic<int64_t> found{0};
  const Figures s = time_passes(threads, [&](int64_t thread, int64_t pass) {
    const int64_t share = kPass / threads;
    const uint8_t* p = pool + pass % (kPoolBytes / kPass) * kPass + thread * share;
    if (std::memchr(p, 0, static_cast<size_t>(share)) != nullptr) found.fetch_add(1);
  });
  if (found.load() != 0) std::printf("(a pass ended early: the bandwidth below is wrong)\n");
  return {kPass / s.median, kPass / s.best};
}

// One kernel with its weights, input and threads' scratch.
class Bench {
 public:
  Bench(const Options& o, int64_t tokens)
      : o_(o),
        tokens_(tokens),
        table_(kernel_table(o.isa)),
        rows_((o.n + 15) / 16 * 16),
        groups_(o.k / o.group),
        layout_(activation_layout(table_, o.activations, tokens)),
        scales_(rows_ * groups_),
        offsets_(rows_ * groups_),
        values_((tokens + 15) / 16 * 16 * o.k * 2),
        x_scales_(tokens * groups_),
        x_sums_(tokens * groups_),
        x_int_sums_(tokens * groups_),
        out_(tokens * rows_) {
    data_bytes_ = rows_ * o.k / (o.format == WeightFormat::kInt4 ? 2 : 1);
    for (int64_t i = 0; i < scales_.size(); ++i) scales_[i] = 0x2400 + (i & 255);  // 2^-6
    for (int64_t i = 0; i < offsets_.size(); ++i) offsets_[i] = 0xA800 + (i & 255);
    if (o.form == GroupForm::kZeroPoint) std::memset(offsets_.data(), 7, offsets_.size());
    x_ = {o.activations,  layout_,
          tokens,         o.k,
          o.group,        o.k,
          values_.data(), x_scales_.data(),
          x_sums_.data(), x_int_sums_.data()};
    Random random(3);
    std::vector<float> row(static_cast<size_t>(o.k));
    for (int64_t t = 0; t < tokens; ++t) {
      for (float& v : row) v = random.uniform(-1.0f, 1.0f);
      (o.activations == ActivationType::kInt8 ? table_.quantize_int8 : table_.round_bf16)(
          row.data(), t, x_);
    }
  }

  void run(int64_t threads) {
    const LinearKernel& kernel = linear_kernel(table_, o_.format, o_.activations, layout_);
    const int64_t blocks = rows_ / 16;
    const int64_t step = o_.blocks > 0 ? o_.blocks : (tokens_ == 1 ? 32 : 8);
    const int64_t block_chunks = (blocks + step - 1) / step;
    const int64_t token_chunks = (tokens_ + o_.chunk - 1) / o_.chunk;
    const int64_t chunks = block_chunks * token_chunks;
    const int64_t copies = kPoolBytes / data_bytes_;
    std::vector<LinearWeight> copy;
    for (int64_t i = 0; i < copies; ++i) {
      copy.push_back({o_.format, o_.form, ScaleType::kF16, o_.n, o_.k, o_.group,
                      weight_pool() + i * data_bytes_ / 64 * 64, scales_.data(),
                      o_.form == GroupForm::kSymmetric ? nullptr : offsets_.data()});
    }
    std::vector<Aligned<uint8_t>*> scratch;
    for (int64_t t = 0; t < threads; ++t) {
      scratch.push_back(new Aligned<uint8_t>(64 * o_.k + 65536));
    }
    std::atomic<int64_t> next[2] = {0, 0};
    const Figures s = time_passes(threads, [&](int64_t thread, int64_t pass) {
      if (thread == 0) next[(pass + 1) % 2].store(0);
      for (;;) {
        const int64_t i = next[pass % 2].fetch_add(1);
        if (i >= chunks) break;
        const int64_t t0 = i % token_chunks * o_.chunk, b0 = i / token_chunks * step;
        kernel.fn({&copy[static_cast<size_t>(pass % copies)], &x_, t0,
                   std::min(t0 + o_.chunk, tokens_), b0, std::min(b0 + step, blocks),
                   out_.data() + t0 * rows_ + 16 * b0, rows_, scratch[thread]->data()});
      }
    });
    for (Aligned<uint8_t>* p : scratch) delete p;
    const double bytes =
        double(data_bytes_) + 2.0 * scales_.size() * (o_.form == GroupForm::kSymmetric ? 1 : 2);
    const double operations = 2.0 * o_.n * o_.k * tokens_;
    const char* forms[] = {"symmetric", "zero", "min"};
    std::printf(
        "%-28s %-9s g%-3d M=%-4d %d thread%s: %6.2f ms; best %6.2f, %5.1f GB/s, %5.0f GOPS\n",
        kernel.name, forms[int(o_.form)], int(o_.group), int(tokens_), int(threads),
        threads == 1 ? " " : "s", 1e3 * s.median, 1e3 * s.best, 1e-9 * bytes / s.best,
        1e-9 * operations / s.best);
    std::fflush(stdout);
  }

 private:
  Options o_;
  int64_t tokens_;
  KernelTable table_;
  int64_t rows_, groups_, data_bytes_;
  ActivationLayout layout_;
  Aligned<uint16_t> scales_, offsets_;
  Aligned<uint8_t> values_;
  Aligned<float> x_scales_, x_sums_;
  Aligned<int32_t> x_int_sums_;
  Aligned<float> out_;
  Activations x_;
};

int usage(const char* text) {
  std::fprintf(stderr, "bench_linear: %s\n", text);
  return 2;
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return usage(("no value after " + name).c_str());
    const std::string value = argv[i + 1];
    const int64_t number = std::atoll(value.c_str());
    if (name == "--isa") {
      o.isa = parse_isa(value);
    } else if (name == "--format") {
      o.format = value == "int8" ? WeightFormat::kInt8 : WeightFormat::kInt4;
    } else if (name == "--form") {
      o.form = value == "min"    ? GroupForm::kMinimum
               : value == "zero" ? GroupForm::kZeroPoint
                                 : GroupForm::kSymmetric;
    } else if (name == "--activations") {
      o.activations = value == "bf16" ? ActivationType::kBF16 : ActivationType::kInt8;
    } else {
      int64_t* target = name == "--group"     ? &o.group
                        : name == "--n"       ? &o.n
                        : name == "--k"       ? &o.k
                        : name == "--tokens"  ? &o.tokens
                        : name == "--threads" ? &o.threads
                        : name == "--blocks"  ? &o.blocks
                        : name == "--chunk"   ? &o.chunk
                                              : nullptr;
      if (target == nullptr) return usage(("unknown option " + name).c_str());
      if (number <= 0) return usage((name + " must be positive").c_str());
      *target = number;
    }
  }
  if (!isa_available(o.isa)) return usage("this machine cannot run that ISA");
  if (o.chunk % 16 != 0) return usage("--chunk must be a multiple of 16");
  for (int64_t threads : {1, 2}) {
    if (o.threads != 0 && threads != o.threads) continue;
    const Figures f = read_bandwidth(threads);
    std::printf("read bandwidth, %d thread%s: %.1f GB/s, best %.1f\n", int(threads),
                threads == 1 ? "" : "s", 1e-9 * f.median, 1e-9 * f.best);
  }
  for (int64_t tokens : {1, 512}) {
    if (o.tokens != 0 && tokens == 512) break;
    Bench bench(o, o.tokens != 0 ? o.tokens : tokens);
    for (int64_t threads : {1, 2}) {
      if (o.threads == 0 || threads == o.threads) bench.run(threads);
    }
  }
  return 0;
}

}  // namespace
}  // namespace edge_infer::test

int main(int argc, char** argv) { return edge_infer::test::run(argc, argv); }
