// How a step's attention is cut into tasks: prefill over query tiles, decode over KV
// heads and, when those are fewer than the threads can share, over chunks of the KV.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace edge_infer {

struct StepInput;

struct AttentionTask {
  int32_t sequence;
  int32_t kv_head;
  int32_t query_begin;  // token index in the step
  int32_t num_queries;
  int32_t query_position;
  int32_t kv_begin;
  int32_t kv_end;
  int32_t merge;  // index into merges, -1 when the task writes its result itself
  int32_t part;
};

// Parts of one (sequence, KV head) that are merged by whichever thread ends last.
struct AttentionMerge {
  int32_t parts;
  int64_t partial_row;  // first row in the partial buffer
};

struct AttentionShape {
  int64_t window;
  int64_t num_kv_heads;
  int64_t q_per_kv;
  int64_t head_dim;
  bool operator==(const AttentionShape&) const = default;
};

class AttentionPlan {
 public:
  // With `batch_invariant` a decode is never cut: where depends on what else is in the step.
  AttentionPlan(AttentionShape shape, int64_t max_tokens, int64_t max_sequences, int threads,
                bool batch_invariant);

  // Plans a step; allocates nothing.
  void prepare(const StepInput& in);

  const AttentionShape& shape() const { return shape_; }
  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  const AttentionMerge& merge(int64_t i) const { return merges_[static_cast<size_t>(i)]; }
  // Counts a finished part; true for the last one, which must merge.
  bool last_part(int64_t merge);
  int64_t partial_rows() const { return max_partial_rows_; }  // rows of head_dim + 2 floats
  int64_t row_floats() const { return shape_.head_dim + 2; }

 private:
  AttentionShape shape_;
  int64_t target_tasks_;  // 0 to cut nothing
  int64_t max_partial_rows_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionMerge> merges_;
  std::unique_ptr<std::atomic<int32_t>[]> finished_;
};

}  // namespace edge_infer
