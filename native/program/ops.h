// The ops of a step program. Each is plain data over buffers of the arena; a buffer is
// a byte offset and a row width in floats, and holds one row per token of the step.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/types.h"

namespace edge_infer {

struct Buffer {
  int64_t offset;  // bytes into the arena, a multiple of 64
  int64_t width;   // floats per row, a multiple of 16
};

// Which rows of the step an op works on: every token, or only those whose logits are wanted.
enum class Rows : uint8_t { kTokens = 0, kLogits = 1 };

// out[t] = row of the embedding table for token t, times `scale`.
struct EmbedOp {
  int64_t weight;
  Buffer out;
  float scale;
};

// One prepared form of a linear's input. `offset` is where the rows live in the arena;
// a one-row step prepares into the calling thread's private area at `private_offset`
// instead, every thread for itself, which is cheaper than a barrier.
struct Prepared {
  ActivationType type;
  int64_t group;
  int64_t offset;
  int64_t private_offset;
};

// RMSNorm (when norm >= 0), then each of the prepared forms.
struct PrepareOp {
  Buffer in;
  Rows rows;     // of the output; with kLogits, row i reads in[logits_rows[i]]
  int64_t k;     // row length, in.width without padding
  int64_t norm;  // vector id, -1 for none
  float eps;
  std::vector<Prepared> outputs;
};

// One weight of a linear op: y = W x + bias at columns [column, column + n) of the output.
struct LinearPart {
  int64_t weight;
  int64_t bias;    // vector id, -1 for none
  int64_t column;  // a multiple of 16
  int64_t input;   // index into the prepare op's outputs
};

enum class Epilogue : uint8_t {
  kStore = 0,  // out = y
  kAdd = 1,    // out += y
  kGate = 2,   // parts (gate, up): out = f(gate) * up
};

struct LinearOp {
  int64_t prepare;  // index of the PrepareOp whose outputs are read
  std::vector<LinearPart> parts;
  Buffer out;
  Rows rows;
  Epilogue epilogue;
  GateFunction gate;
};

// Per-head RMSNorm of q and k (when given), RoPE, and the write of k and v to the cache.
struct RopeKvOp {
  Buffer qkv;
  int64_t layer;
  int64_t num_heads;
  int64_t q_column, k_column, v_column;
  int64_t q_norm, k_norm;  // vector ids, -1 for none
  float eps;
  int64_t rope;  // rope table id, -1 for none
};

// Paged attention of q over the cache of `layer`; with gate_column >= 0 head h of the
// result is multiplied by sigmoid(qkv[gate_column + h]).
struct AttentionOp {
  Buffer qkv;
  Buffer out;
  int64_t layer;
  int64_t num_heads;
  int64_t q_column;
  int64_t window;  // 0 for full attention
  float scale;
  int64_t gate_column;
};

using Op = std::variant<EmbedOp, PrepareOp, LinearOp, RopeKvOp, AttentionOp>;

// cos and sin [positions, rotary_dim / 2]; the attention scaling of YaRN is folded in.
struct RopeTable {
  int64_t positions;
  int64_t rotary_dim;
  const float* cos;
  const float* sin;
};

}  // namespace edge_infer
