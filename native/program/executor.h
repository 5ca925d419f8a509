// How a program runs: the memory of a run, the checks of its ops, and the loop over them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace edge_infer {

// Where the parts of a prepared form lie, in bytes from its start.
struct PreparedLayout {
  int64_t scales, sums, int_sums;
  int64_t bytes;
};
PreparedLayout prepared_layout(ActivationType type, int64_t k, int64_t group, int64_t tokens);

// Validates an op against what the program has so far. Throws std::invalid_argument.
struct OpChecker {
  const std::vector<LinearWeight>& weights;
  const std::vector<std::vector<float>>& vectors;
  const std::vector<RopeTable>& ropes;
  const std::vector<Op>& ops;
  const KvCache& kv;
  const ProgramLimits& limits;

  void operator()(const EmbedOp& op) const;
  void operator()(const PrepareOp& op) const;
  void operator()(const LinearOp& op) const;
  void operator()(const RopeKvOp& op) const;
  void operator()(const AttentionOp& op) const;
};

// Validates that an op's buffers lie within the arena.
struct ArenaChecker {
  const std::vector<Op>& ops;
  const ProgramLimits& limits;
  int64_t arena_bytes;
  int64_t private_bytes;

  void operator()(const EmbedOp& op) const;
  void operator()(const PrepareOp& op) const;
  void operator()(const LinearOp& op) const;
  void operator()(const RopeKvOp& op) const;
  void operator()(const AttentionOp& op) const;
};

// Prepared forms of one input: a model mixes at most int8, bf16 and f32 at one or two groups.
inline constexpr size_t kMaxPrepared = 4;
inline constexpr size_t kMaxParts = 16;

// Tokens and columns of the tile in which a linear's epilogue finds its results.
inline constexpr int64_t kTileTokens = 256;
inline constexpr int64_t kTileColumns = 256;

struct FreeDeleter {
  void operator()(char* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<char, FreeDeleter>;

// Everything a step writes, allocated once.
struct Program::State {
  State(int threads, int64_t arena_bytes, int64_t private_bytes, int64_t max_k,
        int64_t partial_floats, size_t num_ops);

  char* arena() const { return arena_.get(); }
  float* partial() const { return reinterpret_cast<float*>(partial_.get()); }
  // One thread's: prepared rows, then a row of floats, the kernels' scratch, two tiles.
  char* prepared(int thread) const { return private_.get() + thread * private_stride_; }
  float* row(int thread) const { return at<float>(thread, row_offset_); }
  void* scratch(int thread) const { return at<char>(thread, scratch_offset_); }
  float* tile(int thread, int i) const {
    return at<float>(thread, tile_offset_ + i * kTileTokens * kTileColumns * 4);
  }
  std::atomic<int64_t>& counter(size_t op) const { return counters_[op]; }
  void reset_counters();
  int64_t bytes() const { return bytes_; }
  // Counts one op run by the kernel `name`, a string that lives as long as the process.
  void count(const char* name);
  const std::vector<std::pair<const char*, int64_t>>& calls() const { return calls_; }

 private:
  template <class T>
  T* at(int thread, int64_t offset) const {
    return reinterpret_cast<T*>(prepared(thread) + offset);
  }

  int64_t row_offset_, scratch_offset_, tile_offset_, private_stride_;
  int64_t bytes_ = 0;
  AlignedBytes arena_, private_, partial_;
  size_t num_ops_;
  std::unique_ptr<std::atomic<int64_t>[]> counters_;
  std::vector<std::pair<const char*, int64_t>> calls_;
};

// One step, run by every thread of the pool.
struct Executor {
  Program& p;
  const StepInput& in;
  size_t num_ops;  // that run, from the first

  void run(int thread);
  // Where an output of a prepare op is; that of one row is in the thread's private area.
  Activations activations(const PrepareOp& op, size_t output, int thread) const;

 private:
  int64_t rows(Rows r) const { return r == Rows::kTokens ? in.num_tokens : in.num_logits; }
  float* buffer(const Buffer& b, int64_t row) const;
  const float* vector(int64_t id) const;
  // Row blocks that a thread takes at a time from a linear over n rows.
  int64_t chunk_blocks(int64_t total_blocks, int64_t n) const;
  // Claims the next `chunk` of `items`; false when none is left.
  bool claim(size_t op, int64_t items, int64_t chunk, int64_t* begin, int64_t* end) const;

  void embed(size_t index, const EmbedOp& op);
  void prepare(size_t index, const PrepareOp& op, int thread);
  void prepare_row(const PrepareOp& op, int64_t row,
                   const std::array<Activations, kMaxPrepared>& outputs, float* normed) const;
  void linear(size_t index, const LinearOp& op, int thread);
  void linear_tile(const LinearOp& op, const LinearPart& part, int thread, LinearArgs args);
  void gate_tile(const LinearOp& op, int thread, LinearArgs args);
  void rope_kv(size_t index, const RopeKvOp& op);
  void attention(size_t index, const AttentionOp& op, int thread);
};

}  // namespace edge_infer
