#include "program/attention_plan.h"

#include <algorithm>

#include "program/program.h"

namespace edge_infer {
namespace {

constexpr int64_t kQueryTile = 64;      // queries of one prefill task
constexpr int64_t kMinChunk = 128;      // positions below which a decode is not cut further
constexpr int64_t kTasksPerThread = 4;  // enough for dynamic sharing to even out

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

AttentionPlan::AttentionPlan(AttentionShape shape, int64_t max_tokens, int64_t max_sequences,
                             int threads, bool batch_invariant)
    : shape_(shape), target_tasks_(batch_invariant ? 0 : kTasksPerThread * threads) {
  // A decode is cut only while (sequence, head) pairs are fewer than target_tasks, into at
  // most ceil(target / pairs) parts each, so all parts together are fewer than 2 * target.
  const int64_t max_parts = 2 * target_tasks_;
  const int64_t max_tiles = ceil_div(max_tokens, kQueryTile) + max_sequences;
  max_partial_rows_ = max_parts * shape.q_per_kv;
  tasks_.reserve(static_cast<size_t>(max_tiles * shape.num_kv_heads + max_parts));
  merges_.reserve(static_cast<size_t>(max_parts));
  finished_ = std::make_unique<std::atomic<int32_t>[]>(static_cast<size_t>(max_parts));
}

void AttentionPlan::prepare(const StepInput& in) {
  tasks_.clear();
  merges_.clear();
  int64_t decodes = 0;
  for (int64_t s = 0; s < in.num_sequences; ++s) {
    decodes += in.query_start[s + 1] - in.query_start[s] == 1;
  }
  const int64_t pairs = decodes * shape_.num_kv_heads;
  const int64_t max_parts = pairs == 0 ? 1 : std::max<int64_t>(1, ceil_div(target_tasks_, pairs));
  int64_t partial_row = 0;

  const auto first_visible = [this](int64_t position) {
    return shape_.window > 0 ? std::max<int64_t>(0, position - shape_.window + 1) : 0;
  };
  // Sequences inside: those with a common prefix read its blocks while they are in L2.
  for (int64_t head = 0; head < shape_.num_kv_heads; ++head) {
    for (int64_t s = 0; s < in.num_sequences; ++s) {
      const int64_t begin = in.query_start[s];
      const int64_t count = in.query_start[s + 1] - begin;
      const int64_t position = in.positions[begin];
      AttentionTask task{};
      task.sequence = static_cast<int32_t>(s);
      task.kv_head = static_cast<int32_t>(head);
      task.merge = -1;
      if (count > 1) {
        // The last tiles see the most positions: put them first.
        for (int64_t tile = ceil_div(count, kQueryTile) - 1; tile >= 0; --tile) {
          const int64_t q0 = tile * kQueryTile;
          const int64_t n = std::min(kQueryTile, count - q0);
          task.query_begin = static_cast<int32_t>(begin + q0);
          task.num_queries = static_cast<int32_t>(n);
          task.query_position = static_cast<int32_t>(position + q0);
          task.kv_begin = static_cast<int32_t>(first_visible(position + q0));
          task.kv_end = static_cast<int32_t>(position + q0 + n);
          tasks_.push_back(task);
        }
        continue;
      }
      const int64_t kv_begin = first_visible(position);
      const int64_t kv_end = position + 1;
      const int64_t parts =
          std::min(max_parts, std::max<int64_t>(1, (kv_end - kv_begin) / kMinChunk));
      task.query_begin = static_cast<int32_t>(begin);
      task.num_queries = 1;
      task.query_position = static_cast<int32_t>(position);
      if (parts > 1) {
        task.merge = static_cast<int32_t>(merges_.size());
        finished_[merges_.size()].store(0, std::memory_order_relaxed);
        merges_.push_back({static_cast<int32_t>(parts), partial_row});
        partial_row += parts * shape_.q_per_kv;
      }
      for (int64_t p = 0; p < parts; ++p) {
        task.part = static_cast<int32_t>(p);
        task.kv_begin = static_cast<int32_t>(kv_begin + (kv_end - kv_begin) * p / parts);
        task.kv_end = static_cast<int32_t>(kv_begin + (kv_end - kv_begin) * (p + 1) / parts);
        tasks_.push_back(task);
      }
    }
  }
}

bool AttentionPlan::last_part(int64_t merge) {
  std::atomic<int32_t>& finished = finished_[static_cast<size_t>(merge)];
  const int32_t parts = merges_[static_cast<size_t>(merge)].parts;
  if (finished.fetch_add(1, std::memory_order_acq_rel) != parts - 1) return false;
  finished.store(0, std::memory_order_relaxed);  // ready for the next layer, after its barrier
  return true;
}

}  // namespace edge_infer
