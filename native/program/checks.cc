// The checks of a program while it is built: what an op names exists and fits together.
#include <stdexcept>
#include <string>

#include "program/executor.h"

namespace edge_infer {
namespace {

std::string str(int64_t v) { return std::to_string(v); }

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument("step program: " + message);
}

template <class T>
const T& item(const std::vector<T>& list, int64_t id, const char* what) {
  require(id >= 0 && id < static_cast<int64_t>(list.size()),
          std::string("no ") + what + " number " + str(id));
  return list[static_cast<size_t>(id)];
}

void check_buffer(const Buffer& b, int64_t columns, const char* name) {
  require(b.width >= columns && b.width % 16 == 0 && b.width <= (1 << 24),
          std::string(name) + ": width " + str(b.width) +
              " must be a multiple of 16 and at least " + str(columns));
  require(b.offset >= 0 && b.offset % 64 == 0,
          std::string(name) + ": offset " + str(b.offset) + " is not a multiple of 64");
}

void check_vector(const std::vector<std::vector<float>>& vectors, int64_t id, int64_t n,
                  const char* name) {
  if (id < 0) return;
  const auto& v = item(vectors, id, "vector");
  require(static_cast<int64_t>(v.size()) == n, std::string(name) + ": has " +
                                                   str(static_cast<int64_t>(v.size())) +
                                                   " values, expected " + str(n));
}

ActivationType needed_activation(WeightFormat f, ActivationType given) {
  const bool quantized = f == WeightFormat::kInt4 || f == WeightFormat::kInt8;
  if (!quantized) return ActivationType::kF32;
  return given == ActivationType::kF32 ? ActivationType::kInt8 : given;
}

const PrepareOp& prepare_op(const std::vector<Op>& ops, int64_t index) {
  const Op& op = item(ops, index, "op");
  const auto* prepare = std::get_if<PrepareOp>(&op);
  require(prepare != nullptr, "op " + str(index) + " prepares nothing");
  return *prepare;
}

int64_t pad16(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace

void OpChecker::operator()(const EmbedOp& op) const {
  const LinearWeight& w = item(weights, op.weight, "weight");
  require(w.n >= limits.vocab_size,
          "embedding: " + str(w.n) + " rows for a vocabulary of " + str(limits.vocab_size));
  check_buffer(op.out, w.k, "embedding output");
}

void OpChecker::operator()(const PrepareOp& op) const {
  require(op.k >= 1, "prepare: k must be positive");
  check_buffer(op.in, op.k, "prepare input");
  check_vector(vectors, op.norm, op.k, "norm weight");
  require(!op.outputs.empty() && op.outputs.size() <= kMaxPrepared,
          "prepare: " + str(static_cast<int64_t>(op.outputs.size())) + " outputs, the limit is " +
              str(kMaxPrepared));
  for (const Prepared& out : op.outputs) {
    if (out.type != ActivationType::kF32) {
      require(out.group > 0 && out.group % 32 == 0 && op.k % out.group == 0,
              "prepare: " + str(op.k) + " columns are no multiple of the group " + str(out.group));
    }
    require(out.offset >= 0 && out.offset % 64 == 0 && out.private_offset >= 0 &&
                out.private_offset % 64 == 0,
            "prepare: an offset is not a multiple of 64");
  }
}

void OpChecker::operator()(const LinearOp& op) const {
  const PrepareOp& prepare = prepare_op(ops, op.prepare);
  require(prepare.rows == op.rows, "linear: its rows differ from its prepare op's");
  require(!op.parts.empty() && op.parts.size() <= kMaxParts,
          "linear: the number of parts must be 1 to " + str(kMaxParts));
  require(op.epilogue != Epilogue::kGate || op.parts.size() == 2, "linear: a gate takes two parts");
  for (const LinearPart& part : op.parts) {
    const LinearWeight& w = item(weights, part.weight, "weight");
    require(w.k == prepare.k,
            "linear: K is " + str(w.k) + ", its input has " + str(prepare.k) + " columns");
    const Prepared& input = item(prepare.outputs, part.input, "prepared form");
    require(input.type == needed_activation(w.format, input.type),
            "linear: the prepared form does not suit the weight's format");
    require(
        input.type == ActivationType::kF32 || input.group == w.group,
        "linear: the input's group " + str(input.group) + " is not the weight's " + str(w.group));
    require(part.column >= 0 && part.column % 16 == 0, "linear: column must be a multiple of 16");
    check_buffer(op.out, part.column + pad16(w.n), "linear output");
    check_vector(vectors, part.bias, w.n, "bias");
  }
  if (op.epilogue == Epilogue::kGate) {
    require(weights[static_cast<size_t>(op.parts[0].weight)].n ==
                weights[static_cast<size_t>(op.parts[1].weight)].n,
            "linear: gate and up differ in rows");
  }
}

void OpChecker::operator()(const RopeKvOp& op) const {
  require(op.layer >= 0 && op.layer < kv.num_layers(), "rope: no KV layer " + str(op.layer));
  const KvLayer& layer = kv.layer(op.layer);
  const int64_t d = layer.head_dim;
  require(op.num_heads >= 1 && op.num_heads % layer.num_kv_heads == 0,
          "rope: " + str(op.num_heads) + " heads are no multiple of " + str(layer.num_kv_heads) +
              " KV heads");
  require(op.q_column >= 0 && op.k_column >= 0 && op.v_column >= 0, "rope: negative column");
  check_buffer(op.qkv, op.q_column + op.num_heads * d, "rope q");
  check_buffer(op.qkv, op.k_column + layer.num_kv_heads * d, "rope k");
  check_buffer(op.qkv, op.v_column + layer.num_kv_heads * d, "rope v");
  check_vector(vectors, op.q_norm, d, "q_norm");
  check_vector(vectors, op.k_norm, d, "k_norm");
  if (op.rope >= 0) {
    require(item(ropes, op.rope, "rope table").rotary_dim <= d,
            "rope: the table rotates more than head_dim " + str(d));
  }
}

void OpChecker::operator()(const AttentionOp& op) const {
  require(op.layer >= 0 && op.layer < kv.num_layers(), "attention: no KV layer " + str(op.layer));
  const KvLayer& layer = kv.layer(op.layer);
  require(op.num_heads >= 1 && op.num_heads % layer.num_kv_heads == 0,
          "attention: " + str(op.num_heads) + " heads are no multiple of " +
              str(layer.num_kv_heads) + " KV heads");
  const int64_t kept = kv.group(kv.group_of(op.layer)).window;
  require(op.window >= 0 && (kept == 0 || (op.window > 0 && op.window <= kept)),
          "attention: window " + str(op.window) + " in a KV group that keeps " + str(kept));
  require(op.q_column >= 0, "attention: negative column");
  check_buffer(op.qkv, op.q_column + op.num_heads * layer.head_dim, "attention q");
  check_buffer(op.out, op.num_heads * layer.head_dim, "attention output");
  if (op.gate_column >= 0) {
    check_buffer(op.qkv, op.gate_column + op.num_heads, "attention gate");
  }
}

namespace {

void check_fits(const Buffer& b, int64_t rows, int64_t arena_bytes, const char* name) {
  require(b.offset <= arena_bytes - rows * b.width * 4,
          std::string(name) + ": " + str(rows) + " rows at offset " + str(b.offset) +
              " end outside the arena of " + str(arena_bytes) + " bytes");
}

}  // namespace

void ArenaChecker::operator()(const EmbedOp& op) const {
  check_fits(op.out, limits.max_tokens, arena_bytes, "embedding output");
}

void ArenaChecker::operator()(const PrepareOp& op) const {
  check_fits(op.in, limits.max_tokens, arena_bytes, "prepare input");
  const int64_t rows = op.rows == Rows::kTokens ? limits.max_tokens : limits.max_logits;
  for (const Prepared& out : op.outputs) {
    const auto bytes = [&](int64_t r) {
      return prepared_layout(out.type, op.k, out.group, r).bytes;
    };
    require(out.offset <= arena_bytes - bytes(rows), "a prepared form ends outside the arena");
    require(out.private_offset <= private_bytes - bytes(1),
            "a prepared form ends outside the private area");
  }
}

void ArenaChecker::operator()(const LinearOp& op) const {
  const int64_t rows = op.rows == Rows::kTokens ? limits.max_tokens : limits.max_logits;
  check_fits(op.out, rows, arena_bytes, "linear output");
}

void ArenaChecker::operator()(const RopeKvOp& op) const {
  check_fits(op.qkv, limits.max_tokens, arena_bytes, "qkv");
}

void ArenaChecker::operator()(const AttentionOp& op) const {
  check_fits(op.qkv, limits.max_tokens, arena_bytes, "attention q");
  check_fits(op.out, limits.max_tokens, arena_bytes, "attention output");
}

}  // namespace edge_infer
