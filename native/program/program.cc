#include "program/program.h"

#include <algorithm>
#include <stdexcept>

#include "program/executor.h"

namespace edge_infer {
namespace {

std::string str(int64_t v) { return std::to_string(v); }

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument("step program: " + message);
}

int64_t align_up(int64_t n) { return (n + 63) / 64 * 64; }

ActivationType quantized_activation(WeightFormat f) {
  return f == WeightFormat::kInt4 || f == WeightFormat::kInt8 ? ActivationType::kInt8
                                                              : ActivationType::kF32;
}

}  // namespace

Program::Program(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvCache> kv, Isa isa,
                 ProgramLimits limits, bool batch_invariant)
    : pool_(std::move(pool)),
      kv_(std::move(kv)),
      table_(batch_invariant ? batch_invariant_kernel_table(isa) : kernel_table(isa)),
      limits_(limits),
      batch_invariant_(batch_invariant) {
  const auto bounded = [](const char* name, int64_t v) {
    require(v >= 1 && v <= (int64_t{1} << 30),
            std::string(name) + " must be 1 to 2^30, not " + str(v));
  };
  bounded("max_tokens", limits.max_tokens);
  bounded("max_sequences", limits.max_sequences);
  bounded("max_logits", limits.max_logits);
  bounded("max_positions", limits.max_positions);
  bounded("vocab_size", limits.vocab_size);
}

Program::~Program() = default;

int64_t Program::add_weight(const LinearWeight& w) {
  require(state_ == nullptr, "the program is finished, no weight can be added");
  require(w.n >= 1 && w.k >= 1 && w.n <= INT32_MAX && w.k <= (1 << 20),
          "weight: shape " + str(w.n) + " x " + str(w.k) + " is outside 1 to 2^31 x 2^20");
  require(w.data != nullptr, "weight: no data");
  if (quantized_activation(w.format) == ActivationType::kInt8) {
    require(w.group == 32 || w.group == 64 || w.group == 128,
            "weight: group must be 32, 64 or 128, not " + str(w.group));
    require(w.k % w.group == 0,
            "weight: K " + str(w.k) + " is not a multiple of its group " + str(w.group));
    require(w.scales != nullptr, "weight: no scales");
    require(w.form == GroupForm::kSymmetric || w.offsets != nullptr, "weight: no offsets");
    require(w.form == GroupForm::kSymmetric || w.format == WeightFormat::kInt4,
            "weight: int8 weights are symmetric");
    require(reinterpret_cast<uintptr_t>(w.data) % 64 == 0,
            "weight: packed data are not 64-byte aligned");
  }
  weights_.push_back(w);
  return static_cast<int64_t>(weights_.size()) - 1;
}

int64_t Program::add_vector(std::vector<float> values) {
  require(!values.empty(), "vector: empty");
  vectors_.push_back(std::move(values));
  return static_cast<int64_t>(vectors_.size()) - 1;
}

int64_t Program::add_rope(const RopeTable& table) {
  require(table.positions >= limits_.max_positions, "rope: the table has " + str(table.positions) +
                                                        " positions, max_positions is " +
                                                        str(limits_.max_positions));
  require(table.rotary_dim >= 2 && table.rotary_dim % 2 == 0,
          "rope: rotary_dim must be even, not " + str(table.rotary_dim));
  ropes_.push_back(table);
  return static_cast<int64_t>(ropes_.size()) - 1;
}

int64_t Program::add_op(Op op) {
  require(state_ == nullptr, "the program is finished, no op can be added");
  const OpChecker check{weights_, vectors_, ropes_, ops_, *kv_, limits_};
  std::visit(check, op);
  int64_t plan = -1;
  if (const auto* a = std::get_if<AttentionOp>(&op)) {
    const KvLayer& layer = kv_->layer(a->layer);
    const AttentionShape shape{a->window, layer.num_kv_heads, a->num_heads / layer.num_kv_heads,
                               layer.head_dim};
    const auto found = std::find_if(plans_.begin(), plans_.end(),
                                    [&](const AttentionPlan& p) { return p.shape() == shape; });
    plan = found - plans_.begin();
    if (found == plans_.end()) {
      plans_.emplace_back(shape, limits_.max_tokens, limits_.max_sequences, pool_->size(),
                          batch_invariant_);
    }
  }
  ops_.push_back(std::move(op));
  op_plan_.push_back(plan);
  return static_cast<int64_t>(ops_.size()) - 1;
}

int64_t Program::prepared_bytes(ActivationType type, int64_t k, int64_t group, int64_t tokens) {
  require(k >= 1 && k <= (1 << 24) && tokens >= 1 && tokens <= (1 << 30) &&
              (type == ActivationType::kF32 || (group >= 1 && k % group == 0)),
          "prepared_bytes: k " + str(k) + ", group " + str(group) + ", tokens " + str(tokens));
  return prepared_layout(type, k, group, tokens).bytes;
}

void Program::finish(int64_t arena_bytes, int64_t private_bytes, Buffer logits, int64_t hidden_op,
                     int64_t hidden_output) {
  require(state_ == nullptr, "finish was called twice");
  require(!ops_.empty(), "a program without ops");
  const int64_t most = int64_t{1} << 40;
  require(arena_bytes >= 0 && arena_bytes <= most && private_bytes >= 0 && private_bytes <= most,
          "the arena and the private areas are limited to 2^40 bytes");
  require(logits.width >= limits_.vocab_size && logits.width % 16 == 0 && logits.width <= (1 << 30),
          "logits: width " + str(logits.width) + " is below the vocabulary of " +
              str(limits_.vocab_size) + " or no multiple of 16");
  int64_t max_k = 0;
  for (const LinearWeight& w : weights_) max_k = std::max(max_k, w.k);
  for (const Op& op : ops_) {
    if (const auto* prepare = std::get_if<PrepareOp>(&op)) max_k = std::max(max_k, prepare->k);
  }
  int64_t partial_floats = 0;
  for (const AttentionPlan& p : plans_) {
    partial_floats = std::max(partial_floats, p.partial_rows() * p.row_floats());
  }
  for (const Op& op : ops_) {
    std::visit(ArenaChecker{ops_, limits_, arena_bytes, private_bytes}, op);
  }
  const int64_t logits_bytes = limits_.max_logits * logits.width * 4;
  require(
      logits.offset >= 0 && logits.offset % 64 == 0 && logits.offset <= arena_bytes - logits_bytes,
      "logits: outside the arena");
  require(hidden_op >= 0 && hidden_op < static_cast<int64_t>(ops_.size()),
          "hidden: op " + str(hidden_op) + " does not exist");
  const auto* hidden = std::get_if<PrepareOp>(&ops_[static_cast<size_t>(hidden_op)]);
  require(hidden != nullptr && hidden->rows == Rows::kLogits,
          "hidden: op " + str(hidden_op) + " does not prepare the logits rows");
  require(hidden_output >= 0 && hidden_output < static_cast<int64_t>(hidden->outputs.size()) &&
              hidden->outputs[static_cast<size_t>(hidden_output)].type == ActivationType::kF32,
          "hidden: output " + str(hidden_output) + " of op " + str(hidden_op) + " is not f32");
  hidden_op_ = hidden_op;
  hidden_output_ = hidden_output;
  logits_ = logits;
  state_ = std::make_unique<State>(pool_->size(), align_up(arena_bytes), align_up(private_bytes),
                                   max_k, partial_floats, ops_.size());
}

int64_t Program::memory_bytes() const {
  int64_t bytes = state_ ? state_->bytes() : 0;
  for (const auto& v : vectors_) bytes += static_cast<int64_t>(v.size()) * 4;
  return bytes;
}

void Program::check_input(const StepInput& in) const {
  require(state_ != nullptr, "step before finish");
  const auto at_most = [](const char* name, int64_t v, int64_t low, int64_t limit) {
    require(v >= low && v <= limit, std::string(name) + " is " + str(v) + ", the limits are " +
                                        str(low) + " to " + str(limit));
  };
  at_most("the number of tokens", in.num_tokens, 1, limits_.max_tokens);
  at_most("the number of sequences", in.num_sequences, 1, limits_.max_sequences);
  at_most("the number of logits rows", in.num_logits, 0, limits_.max_logits);
  at_most("the number of KV groups", in.num_groups, kv_->num_groups(), kv_->num_groups());
  at_most("query_start[0]", in.query_start[0], 0, 0);
  at_most("the last query_start", in.query_start[in.num_sequences], in.num_tokens, in.num_tokens);
  for (int64_t t = 0; t < in.num_tokens; ++t) {
    at_most("a token id", in.tokens[t], 0, limits_.vocab_size - 1);
  }
  for (int64_t i = 0; i < in.num_logits; ++i) {
    at_most("a logits row", in.logits_rows[i], 0, in.num_tokens - 1);
  }
  for (int64_t s = 0; s < in.num_sequences; ++s) {
    const int64_t begin = in.query_start[s];
    const int64_t end = in.query_start[s + 1];
    require(begin < end && end <= in.num_tokens, "query_start must increase, sequence " + str(s) +
                                                     " has " + str(begin) + " to " + str(end));
    for (int64_t t = begin; t < end; ++t) {
      at_most("a position", in.positions[t], 0, limits_.max_positions - 1);
      require(in.positions[t] == in.positions[begin] + (t - begin),
              "the positions of a sequence must be consecutive");
    }
    const int64_t blocks = in.positions[end - 1] / kv_->block_size() + 1;
    at_most("the blocks of a sequence", blocks, 1, in.block_table_width);
    for (int64_t g = 0; g < in.num_groups; ++g) {
      const KvGroup& group = kv_->group(g);
      const int64_t first = group.first_visible(in.positions[begin]) / kv_->block_size();
      for (int64_t b = first; b < blocks; ++b) {
        at_most("a block number", in.block_table(s, g)[b], 0, group.num_blocks - 1);
      }
    }
  }
}

std::vector<std::pair<std::string, int64_t>> Program::kernel_calls() const {
  std::vector<std::pair<std::string, int64_t>> calls;
  if (state_ == nullptr) return calls;
  for (const auto& [name, count] : state_->calls()) calls.emplace_back(name, count);
  return calls;
}

const float* Program::step(const StepInput& in) {
  const std::lock_guard<std::mutex> lock(step_mutex_);
  run(in, ops_.size());
  return reinterpret_cast<const float*>(state_->arena() + logits_.offset);
}

const float* Program::hidden_step(const StepInput& in) {
  const std::lock_guard<std::mutex> lock(step_mutex_);
  run(in, static_cast<size_t>(hidden_op_) + 1);
  const auto& op = std::get<PrepareOp>(ops_[static_cast<size_t>(hidden_op_)]);
  const Executor executor{*this, in, 0};
  const auto output = static_cast<size_t>(hidden_output_);
  return static_cast<const float*>(executor.activations(op, output, 0).values);
}

int64_t Program::hidden_size() const {
  require(state_ != nullptr, "hidden_size before finish");
  return std::get<PrepareOp>(ops_[static_cast<size_t>(hidden_op_)]).k;
}

int64_t Program::hidden_width() const { return (hidden_size() + 15) / 16 * 16; }

void Program::run(const StepInput& in, size_t num_ops) {
  check_input(in);
  for (AttentionPlan& plan : plans_) plan.prepare(in);
  state_->reset_counters();
  Executor executor{*this, in, num_ops};
  pool_->run([](void* context, int thread) { static_cast<Executor*>(context)->run(thread); },
             &executor);
}

}  // namespace edge_infer
