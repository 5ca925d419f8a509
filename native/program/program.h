// A model as a flat list of ops over an arena planned when it is built. A step is one
// call: every thread walks the list, with a barrier where an op needs the results of
// others. Nothing is allocated inside a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/table.h"
#include "program/attention_plan.h"
#include "program/kv_cache.h"
#include "program/ops.h"
#include "threads/pool.h"

namespace edge_infer {

struct ProgramLimits {
  int64_t max_tokens;     // of one step
  int64_t max_sequences;  // of one step
  int64_t max_logits;     // rows of logits of one step
  int64_t max_positions;  // length of a sequence
  int64_t vocab_size;
};

// The sequences of one step. Sequence s owns tokens [query_start[s], query_start[s + 1]),
// at consecutive positions; its cache blocks of KV group g are block_tables[s][g], of which those
// are read that hold a position its tokens see.
struct StepInput {
  const int32_t* tokens;
  const int32_t* positions;
  int64_t num_tokens;
  const int32_t* query_start;  // [num_sequences + 1]
  int64_t num_sequences;
  const int32_t* block_tables;  // [num_sequences, num_groups, block_table_width]
  int64_t num_groups;
  int64_t block_table_width;
  const int32_t* logits_rows;  // token indices
  int64_t num_logits;

  const int32_t* block_table(int64_t sequence, int64_t group) const {
    return block_tables + (sequence * num_groups + group) * block_table_width;
  }
};

class Program {
 public:
  // With `batch_invariant` a token's logits have the same bits whatever the other tokens of
  // its step are: other sequences, or more or fewer of its own.
  Program(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvCache> kv, Isa isa,
          ProgramLimits limits, bool batch_invariant);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Building. Each throws std::invalid_argument that names what is wrong.
  int64_t add_weight(const LinearWeight& w);
  int64_t add_vector(std::vector<float> values);
  int64_t add_rope(const RopeTable& table);
  int64_t add_op(Op op);  // the op's index
  // Allocates the arena and each thread's private area; no op can be added afterwards.
  // Output `hidden_output` of the prepare op `hidden_op` is what hidden_step returns.
  void finish(int64_t arena_bytes, int64_t private_bytes, Buffer logits, int64_t hidden_op,
              int64_t hidden_output);

  // Bytes that a prepared form needs for `tokens` rows of k values.
  static int64_t prepared_bytes(ActivationType type, int64_t k, int64_t group, int64_t tokens);

  // Runs a step, one at a time; returns the logits, [num_logits, logits_width()] floats that stay
  // valid until the next step. Throws std::invalid_argument when the input breaks a limit.
  const float* step(const StepInput& in);
  int64_t logits_width() const { return logits_.width; }
  // The same step up to the input of the output head, for the rows whose logits are asked for:
  // [num_logits, hidden_width()] floats, of which hidden_size() count. The head is not run.
  const float* hidden_step(const StepInput& in);
  int64_t hidden_size() const;
  int64_t hidden_width() const;

  const ProgramLimits& limits() const { return limits_; }
  const KernelTable& table() const { return table_; }
  int64_t memory_bytes() const;  // arena, private areas and vectors: all that is anonymous
  // How many ops each kernel has run, by kernel name: which path really ran.
  std::vector<std::pair<std::string, int64_t>> kernel_calls() const;

 private:
  struct State;
  friend struct Executor;

  void check_input(const StepInput& in) const;
  void run(const StepInput& in, size_t num_ops);

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<KvCache> kv_;
  const KernelTable& table_;
  ProgramLimits limits_;
  bool batch_invariant_;
  Buffer logits_{0, 0};
  int64_t hidden_op_ = -1;
  int64_t hidden_output_ = -1;
  std::vector<LinearWeight> weights_;
  std::vector<std::vector<float>> vectors_;
  std::vector<RopeTable> ropes_;
  std::vector<Op> ops_;
  std::vector<AttentionPlan> plans_;  // one per distinct window and group shape
  std::vector<int64_t> op_plan_;      // op index -> plan, -1
  std::unique_ptr<State> state_;
  std::mutex step_mutex_;
};

}  // namespace edge_infer
