// Speed of the attention kernels on one core: decode beside the read bandwidth, prefill in
// GFLOP/s of the visible pairs.
//
//   bench_attention [--isa NAME] [--type f32|f16|bf16|int8] [--head_dim D] [--group H]
//                   [--queries Q] [--chunk C] [--huge_pages 0|1]
//
// Without options: a table over cache types and head sizes. Decode goes through many
// sequences whose blocks are shuffled over a pool larger than any last-level cache here, in
// chunks of `--chunk` positions when given; prefill is cut into tasks of `--queries` queries.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <numeric>
#include <string>

#include "kernels/table.h"
#include "tests/check.h"

namespace edge_infer::test {
namespace {

constexpr int64_t kPoolBytes = int64_t{640} << 20;
constexpr int64_t kBlockSize = 16;
constexpr int64_t kKvHeads = 4;
constexpr int kRepetitions = 5;
const char* const kTypeNames[] = {"f32", "f16", "bf16", "int8"};
const int64_t kTypeBytes[] = {4, 2, 2, 1};

bool g_huge_pages = true;

struct Options {
  Isa isa = selected_isa();
  int type = -1;
  int64_t head_dim = 0, group = 4, queries = 64, chunk = 0;
};

// CPU time of this thread: what others run on the machine costs no time here, but it does
// share the memory bandwidth.
double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Figures {
  double median, best;  // seconds
};

template <class Work>
Figures repeat(const Work& work) {
  std::vector<double> s;
  work(0);
  for (int i = 0; i < kRepetitions; ++i) {
    const double begin = seconds();
    work(i + 1);
    s.push_back(seconds() - begin);
  }
  std::sort(s.begin(), s.end());
  return {s[kRepetitions / 2], s[0]};
}

// Bytes 0x3c.. are finite numbers near 1e-2 to 1 in every cache type.
uint8_t* pool() {
  static uint8_t* p = [] {
    auto* bytes = static_cast<uint8_t*>(
        mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (bytes == MAP_FAILED) std::abort();
    madvise(bytes, kPoolBytes, g_huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    Random random(1);
    for (int64_t i = 0; i + 8 <= kPoolBytes; i += 8) {
      const uint64_t bits = (random.bits() & 0x8303830383038303u) ^ 0x3c003c003c003c00u;
      std::memcpy(bytes + i, &bits, 8);
    }
    return bytes;
  }();
  return p;
}

using Line __attribute__((vector_size(64), may_alias)) = uint64_t;

Figures read_bandwidth() {
  constexpr int64_t kPass = 64 << 20;
  static volatile uint64_t sink;
  const Figures s = repeat([](int pass) {
    const uint8_t* p = pool() + pass % (kPoolBytes / kPass) * kPass;
    Line sums[2] = {};
    for (int64_t i = 0; i < kPass; i += 128) {
      sums[0] += reinterpret_cast<const Line*>(p + i)[0];
      sums[1] += reinterpret_cast<const Line*>(p + i)[1];
    }
    const Line sum = sums[0] + sums[1];
    for (int j = 0; j < 8; ++j) sink = sink + sum[j];
  });
  return {kPass / s.median, kPass / s.best};
}

class Bench {
 public:
  Bench(const Options& o, int type, int64_t head_dim)
      : o_(o),
        type_(type),
        d_(head_dim),
        table_(kernel_table(o.isa)),
        block_bytes_(kKvHeads * kBlockSize * head_dim * kTypeBytes[type]),
        blocks_(kPoolBytes / 2 / block_bytes_),
        scales_(blocks_ * kKvHeads * kBlockSize),
        block_table_(static_cast<size_t>(blocks_)),
        scratch_(512 * 1024) {
    for (int64_t i = 0; i < scales_.size(); ++i) scales_[i] = 0.01f;
    kv_ = {static_cast<KvType>(type), kBlockSize,     kKvHeads,      head_dim, pool(),
           pool() + kPoolBytes / 2,   scales_.data(), scales_.data()};
    std::iota(block_table_.begin(), block_table_.end(), 0);
    Random random(2);
    for (int64_t i = blocks_ - 1; i > 0; --i) {
      std::swap(block_table_[size_t(i)], block_table_[size_t(random.below(i + 1))]);
    }
  }

  void decode(int64_t context) {
    const int64_t heads = kKvHeads * o_.group;
    std::vector<float> q(static_cast<size_t>(heads * d_), 0.1f), out(q.size());
    const int64_t chunk = o_.chunk > 0 ? o_.chunk : context;
    std::vector<float> partial(static_cast<size_t>((context / chunk + 1) * o_.group * (d_ + 2)));
    const int64_t per_sequence = context / kBlockSize;
    const int64_t sequences =
        std::max<int64_t>(1, (int64_t{64} << 20) / (per_sequence * block_bytes_));
    const int64_t room = blocks_ - per_sequence;
    int64_t next = 0;
    const Figures s = repeat([&](int) {
      for (int64_t i = 0; i < sequences; ++i, next += per_sequence) {
        AttentionArgs a = args(q, out);
        a.block_table = block_table_.data() + next % room;
        a.num_queries = 1;
        a.query_position = context - 1;
        for (a.kv_head = 0; a.kv_head < kKvHeads; ++a.kv_head) {
          a.q = q.data() + a.kv_head * o_.group * d_;
          a.out = out.data() + a.kv_head * o_.group * d_;
          int64_t parts = 0;
          for (a.kv_begin = 0; a.kv_begin < context; a.kv_begin += chunk, ++parts) {
            a.kv_end = std::min(context, a.kv_begin + chunk);
            a.partial = o_.chunk > 0 ? partial.data() + parts * o_.group * (d_ + 2) : nullptr;
            table_.attention(a);
          }
          if (o_.chunk > 0) {
            table_.attention_merge(partial.data(), parts, o_.group, d_, a.out, d_);
          }
        }
      }
    });
    const double bytes = 2.0 * double(sequences * per_sequence * block_bytes_);
    std::printf(
        "%-22s %-4s head_dim %3d group %2d decode  at %4d: %6.1f us a head, best %6.1f; %5.1f "
        "GB/s, best %5.1f\n",
        table_.attention_name, kTypeNames[type_], int(d_), int(o_.group), int(context),
        1e6 * s.median / double(sequences * kKvHeads), 1e6 * s.best / double(sequences * kKvHeads),
        1e-9 * bytes / s.median, 1e-9 * bytes / s.best);
    std::fflush(stdout);
  }

  // `tokens` new tokens after `past` cached ones.
  void prefill(int64_t tokens, int64_t past) {
    const int64_t width = kKvHeads * o_.group * d_;
    std::vector<float> q(static_cast<size_t>(tokens * width)), out(q.size());
    Random random(3);
    for (float& x : q) x = random.uniform(-1.0f, 1.0f);
    const Figures s = repeat([&](int) {
      AttentionArgs a = args(q, out);
      a.block_table = block_table_.data();
      for (a.kv_head = 0; a.kv_head < kKvHeads; ++a.kv_head) {
        for (int64_t t = 0; t < tokens; t += o_.queries) {
          a.num_queries = std::min(o_.queries, tokens - t);
          a.query_position = past + t;
          a.kv_end = past + t + a.num_queries;
          a.q = q.data() + t * width + a.kv_head * o_.group * d_;
          a.out = out.data() + t * width + a.kv_head * o_.group * d_;
          table_.attention(a);
        }
      }
    });
    const double pairs = double(tokens) * (double(past) + 0.5 * double(tokens + 1));
    const double flops = 4.0 * pairs * double(width);
    std::printf(
        "%-22s %-4s head_dim %3d group %2d prefill %4d after %4d, tasks of %3d: %7.2f ms, best "
        "%7.2f; %5.0f GFLOP/s, best %5.0f\n",
        table_.attention_name, kTypeNames[type_], int(d_), int(o_.group), int(tokens), int(past),
        int(o_.queries), 1e3 * s.median, 1e3 * s.best, 1e-9 * flops / s.median,
        1e-9 * flops / s.best);
    std::fflush(stdout);
  }

 private:
  AttentionArgs args(const std::vector<float>& q, std::vector<float>& out) {
    AttentionArgs a{};
    a.kv = &kv_;
    a.q_per_kv = o_.group;
    a.scale = 1.0f / std::sqrt(static_cast<float>(d_));
    a.q = q.data();
    a.q_stride = kKvHeads * o_.group * d_;
    a.out = out.data();
    a.out_stride = a.q_stride;
    a.scratch = scratch_.data();
    return a;
  }

  Options o_;
  int type_;
  int64_t d_;
  KernelTable table_;
  int64_t block_bytes_, blocks_;
  Aligned<float> scales_;
  std::vector<int32_t> block_table_;
  Aligned<uint8_t> scratch_;
  KvLayer kv_;
};

int usage(const char* text) {
  std::fprintf(stderr, "bench_attention: %s\n", text);
  return 2;
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return usage(("no value after " + name).c_str());
    const std::string value = argv[i + 1];
    if (name == "--isa") {
      o.isa = parse_isa(value);
    } else if (name == "--type") {
      for (int t = 0; t < 4; ++t) o.type = value == kTypeNames[t] ? t : o.type;
      if (o.type < 0) return usage(("unknown cache type " + value).c_str());
    } else if (name == "--huge_pages") {
      g_huge_pages = value == "1";
    } else {
      int64_t* target = name == "--head_dim"  ? &o.head_dim
                        : name == "--group"   ? &o.group
                        : name == "--queries" ? &o.queries
                        : name == "--chunk"   ? &o.chunk
                                              : nullptr;
      if (target == nullptr) return usage(("unknown option " + name).c_str());
      *target = std::atoll(value.c_str());
      if (*target <= 0) return usage((name + " must be positive").c_str());
    }
  }
  if (!isa_available(o.isa)) return usage("this machine cannot run that ISA");
  const Figures f = read_bandwidth();
  std::printf("read bandwidth, 1 thread, %s pages: %.1f GB/s, best %.1f\n",
              g_huge_pages ? "huge" : "4 KiB", 1e-9 * f.median, 1e-9 * f.best);
  for (int type : {2, 1, 3, 0}) {
    if (o.type >= 0 && type != o.type) continue;
    for (int64_t head_dim : {64, 128}) {
      if (o.head_dim != 0 && head_dim == 128) break;
      Bench bench(o, type, o.head_dim != 0 ? o.head_dim : head_dim);
      bench.decode(512);
      bench.decode(4096);
      bench.prefill(512, 0);
      bench.prefill(512, 3584);
    }
  }
  return 0;
}

}  // namespace
}  // namespace edge_infer::test

int main(int argc, char** argv) { return edge_infer::test::run(argc, argv); }
