#include "program/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace edge_infer {
namespace {

constexpr int64_t kAttentionScratch = 512 * 1024;  // AttentionArgs::scratch
constexpr int64_t kActivationBytes = 1 << 20;      // of one token chunk: half of a usual L2
constexpr int64_t kSmallStep = 8;                  // tokens up to which weights bound a linear
constexpr int64_t kChunksPerThread = 4;            // so that a slow thread holds up little
constexpr int64_t kMinRun = 8;                     // blocks of a chunk of a small step
constexpr int64_t kMaxRun = 64;

int64_t align_up(int64_t n) { return (n + 63) / 64 * 64; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t element_bytes(ActivationType type) {
  switch (type) {
    case ActivationType::kInt8: return 1;
    case ActivationType::kBF16: return 2;
    case ActivationType::kF32: return 4;
  }
  return 4;
}

int64_t f32_row(int64_t k) { return ceil_div(k, 16) * 16; }

AlignedBytes allocate(int64_t bytes) {
  char* p = static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(align_up(bytes) + 64)));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedBytes(p);
}

}  // namespace

PreparedLayout prepared_layout(ActivationType type, int64_t k, int64_t group, int64_t tokens) {
  PreparedLayout l{};
  if (type == ActivationType::kF32) {
    l.bytes = align_up(tokens * f32_row(k) * 4);
    return l;
  }
  const int64_t padded = ceil_div(tokens, 16) * 16;  // panels hold whole tiles
  const int64_t per_group = align_up(padded * (k / group) * 4);
  l.scales = align_up((tokens > 1 ? padded : tokens) * k * element_bytes(type));
  l.sums = l.scales + per_group;
  l.int_sums = l.sums + per_group;
  l.bytes = l.int_sums + per_group;
  return l;
}

Program::State::State(int threads, int64_t arena_bytes, int64_t private_bytes, int64_t max_k,
                      int64_t partial_floats, size_t num_ops)
    : num_ops_(num_ops) {
  row_offset_ = align_up(private_bytes);
  scratch_offset_ = row_offset_ + align_up(f32_row(max_k) * 4);
  tile_offset_ = scratch_offset_ + std::max(kAttentionScratch, align_up(64 * max_k + 65536));
  // One line more, so that the threads' areas do not all start at one cache set.
  private_stride_ = tile_offset_ + 2 * kTileTokens * kTileColumns * 4 + 64;
  arena_ = allocate(arena_bytes);
  private_ = allocate(private_stride_ * threads);
  partial_ = allocate(partial_floats * 4);
  bytes_ = arena_bytes + private_stride_ * threads + partial_floats * 4;
  counters_ = std::make_unique<std::atomic<int64_t>[]>(num_ops);
  calls_.reserve(64);
}

void Program::State::reset_counters() {
  for (size_t i = 0; i < num_ops_; ++i) counters_[i].store(0, std::memory_order_relaxed);
}

void Program::State::count(const char* name) {
  for (auto& [known, n] : calls_) {
    if (known == name) {
      ++n;
      return;
    }
  }
  calls_.emplace_back(name, 1);
}

float* Executor::buffer(const Buffer& b, int64_t row) const {
  return reinterpret_cast<float*>(p.state_->arena() + b.offset) + row * b.width;
}

const float* Executor::vector(int64_t id) const {
  return id < 0 ? nullptr : p.vectors_[static_cast<size_t>(id)].data();
}

int64_t Executor::chunk_blocks(int64_t total_blocks, int64_t n) const {
  // Few tokens: the weights stream by, long runs keep the prefetcher busy. Many tokens: a
  // chunk's results must fit the tile, and kernels take blocks in pairs.
  const int64_t share = ceil_div(total_blocks, p.pool_->size() * kChunksPerThread);
  if (n <= kSmallStep) return std::clamp<int64_t>(share, kMinRun, kMaxRun);
  return std::clamp<int64_t>(ceil_div(share, 2) * 2, 2, kTileColumns / 16);
}

bool Executor::claim(size_t op, int64_t items, int64_t chunk, int64_t* begin, int64_t* end) const {
  *begin = p.state_->counter(op).fetch_add(chunk, std::memory_order_relaxed);
  *end = std::min(items, *begin + chunk);
  return *begin < items;
}

Activations Executor::activations(const PrepareOp& op, size_t output, int thread) const {
  const Prepared& out = op.outputs[output];
  const int64_t n = rows(op.rows);
  Activations a{};
  a.type = out.type;
  a.tokens = n;
  a.k = op.k;
  a.group = out.group;
  a.layout = activation_layout(p.table_, out.type, n);
  if (out.type == ActivationType::kF32 && op.norm < 0 && op.rows == Rows::kTokens) {
    a.ld = op.in.width;  // nothing to prepare: read in place
    a.values = buffer(op.in, 0);
    return a;
  }
  const PreparedLayout l = prepared_layout(out.type, op.k, out.group, n);
  char* base =
      n == 1 ? p.state_->prepared(thread) + out.private_offset : p.state_->arena() + out.offset;
  a.ld = f32_row(op.k);
  a.values = base;
  a.scales = reinterpret_cast<float*>(base + l.scales);
  a.sums = reinterpret_cast<float*>(base + l.sums);
  a.int_sums = reinterpret_cast<int32_t*>(base + l.int_sums);
  return a;
}

void Executor::run(int thread) {
  Barrier& barrier = p.pool_->barrier();
  for (size_t i = 0; i < num_ops; ++i) {
    const Op& op = p.ops_[i];
    bool shared = true;  // whether other threads read what this op wrote
    if (const auto* linear_op = std::get_if<LinearOp>(&op)) {
      linear(i, *linear_op, thread);
    } else if (const auto* prepare_op = std::get_if<PrepareOp>(&op)) {
      prepare(i, *prepare_op, thread);
      shared = rows(prepare_op->rows) > 1;
    } else if (const auto* attention_op = std::get_if<AttentionOp>(&op)) {
      attention(i, *attention_op, thread);
    } else if (const auto* rope_op = std::get_if<RopeKvOp>(&op)) {
      rope_kv(i, *rope_op);
    } else if (const auto* embed_op = std::get_if<EmbedOp>(&op)) {
      embed(i, *embed_op);
    }
    if (shared) barrier.wait();
  }
}

void Executor::embed(size_t index, const EmbedOp& op) {
  const LinearWeight& w = p.weights_[static_cast<size_t>(op.weight)];
  int64_t begin, end;
  while (claim(index, in.num_tokens, 4, &begin, &end)) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = buffer(op.out, t);
      p.table_.embed_row(w, in.tokens[t], out);
      if (op.scale != 1.0f) p.table_.scale(op.scale, w.k, out);
    }
  }
}

void Executor::prepare(size_t index, const PrepareOp& op, int thread) {
  const int64_t n = rows(op.rows);
  std::array<Activations, kMaxPrepared> outputs;
  for (size_t i = 0; i < op.outputs.size(); ++i) outputs[i] = activations(op, i, thread);
  float* normed = p.state_->row(thread);
  if (n == 1) {
    prepare_row(op, 0, outputs, normed);
    return;
  }
  int64_t begin, end;
  while (claim(index, n, 8, &begin, &end)) {
    for (int64_t r = begin; r < end; ++r) prepare_row(op, r, outputs, normed);
  }
}

void Executor::prepare_row(const PrepareOp& op, int64_t row,
                           const std::array<Activations, kMaxPrepared>& outputs,
                           float* normed) const {
  const KernelTable& t = p.table_;
  const int64_t source = op.rows == Rows::kTokens ? row : in.logits_rows[row];
  const float* x = buffer(op.in, source);
  if (op.norm >= 0) {
    t.rms_norm(x, vector(op.norm), op.k, op.eps, normed);
    x = normed;
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const Activations& a = outputs[i];
    switch (a.type) {
      case ActivationType::kInt8: t.quantize_int8(x, row, a); break;
      case ActivationType::kBF16: t.round_bf16(x, row, a); break;
      case ActivationType::kF32: {
        float* out = static_cast<float*>(a.values) + row * a.ld;
        if (out != x) std::memcpy(out, x, static_cast<size_t>(op.k) * sizeof(float));
        break;
      }
    }
  }
}

void Executor::linear(size_t index, const LinearOp& op, int thread) {
  const int64_t n = rows(op.rows);
  if (n == 0) return;
  const auto& prepare = std::get<PrepareOp>(p.ops_[static_cast<size_t>(op.prepare)]);
  const bool gate = op.epilogue == Epilogue::kGate;
  const size_t num_parts = gate ? 1 : op.parts.size();
  const auto weight = [&](size_t part) -> const LinearWeight& {
    return p.weights_[static_cast<size_t>(op.parts[part].weight)];
  };

  // Token chunks keep the activations in the cache while all blocks pass by; block
  // chunks are what the threads share.
  int64_t row_bytes = 0;
  int64_t total_blocks = 0;
  for (size_t i = 0; i < num_parts; ++i) {
    const ActivationType type = prepare.outputs[static_cast<size_t>(op.parts[i].input)].type;
    row_bytes = std::max(row_bytes, prepare.k * element_bytes(type));
    total_blocks += ceil_div(weight(i).n, 16);
  }
  const int64_t token_chunk =
      std::clamp<int64_t>(kActivationBytes / row_bytes / 16 * 16, 64, kTileTokens);
  const int64_t block_chunk = chunk_blocks(total_blocks, n);
  const int64_t token_chunks = ceil_div(n, token_chunk);

  int64_t chunks[kMaxParts];  // block chunks of each part
  int64_t items_per_token_chunk = 0;
  for (size_t i = 0; i < num_parts; ++i) {
    chunks[i] = ceil_div(ceil_div(weight(i).n, 16), block_chunk);
    items_per_token_chunk += chunks[i];
  }
  int64_t item, end;
  while (claim(index, token_chunks * items_per_token_chunk, 1, &item, &end)) {
    const int64_t chunk = item / items_per_token_chunk;
    int64_t rest = item % items_per_token_chunk;
    size_t part = 0;
    while (rest >= chunks[part]) rest -= chunks[part++];
    LinearArgs args{};
    args.token_begin = chunk * token_chunk;
    args.token_end = std::min(n, args.token_begin + token_chunk);
    args.block_begin = rest * block_chunk;
    args.block_end = std::min(ceil_div(weight(part).n, 16), args.block_begin + block_chunk);
    args.scratch = p.state_->scratch(thread);
    if (gate) {
      gate_tile(op, thread, args);
    } else {
      linear_tile(op, op.parts[part], thread, args);
    }
  }
  if (thread == 0) {
    for (const LinearPart& part : op.parts) {
      const Activations x = activations(prepare, static_cast<size_t>(part.input), 0);
      const LinearWeight& w = p.weights_[static_cast<size_t>(part.weight)];
      p.state_->count(linear_kernel(p.table_, w.format, x.type, x.layout).name);
    }
  }
}

void Executor::linear_tile(const LinearOp& op, const LinearPart& part, int thread,
                           LinearArgs args) {
  const auto& prepare = std::get<PrepareOp>(p.ops_[static_cast<size_t>(op.prepare)]);
  const LinearWeight& w = p.weights_[static_cast<size_t>(part.weight)];
  const Activations x = activations(prepare, static_cast<size_t>(part.input), thread);
  const int64_t first = args.block_begin * 16;
  const int64_t columns = std::min(w.n, args.block_end * 16) - first;
  args.w = &w;
  args.x = &x;
  float* out = buffer(op.out, args.token_begin) + part.column + first;
  // Adding to the output needs the result elsewhere first.
  const bool add = op.epilogue == Epilogue::kAdd;
  args.out = add ? p.state_->tile(thread, 0) : out;
  args.ldo = add ? (args.block_end - args.block_begin) * 16 : op.out.width;
  linear_kernel(p.table_, w.format, x.type, x.layout).fn(args);
  const float* bias = vector(part.bias);
  if (!add && bias == nullptr) return;
  for (int64_t t = 0; t < args.token_end - args.token_begin; ++t) {
    float* y = out + t * op.out.width;
    if (add) p.table_.add(args.out + t * args.ldo, columns, y);
    if (bias != nullptr) p.table_.add(bias + first, columns, y);
  }
}

void Executor::gate_tile(const LinearOp& op, int thread, LinearArgs args) {
  const auto& prepare = std::get<PrepareOp>(p.ops_[static_cast<size_t>(op.prepare)]);
  const int64_t columns = (args.block_end - args.block_begin) * 16;
  const int64_t tokens = args.token_end - args.token_begin;
  for (int i = 0; i < 2; ++i) {
    const LinearPart& part = op.parts[static_cast<size_t>(i)];
    const LinearWeight& w = p.weights_[static_cast<size_t>(part.weight)];
    const Activations x = activations(prepare, static_cast<size_t>(part.input), thread);
    args.w = &w;
    args.x = &x;
    args.out = p.state_->tile(thread, i);
    args.ldo = columns;
    linear_kernel(p.table_, w.format, x.type, x.layout).fn(args);
    if (const float* bias = vector(part.bias)) {
      const int64_t first = args.block_begin * 16;
      const int64_t n = std::min(w.n - first, columns);
      for (int64_t t = 0; t < tokens; ++t) p.table_.add(bias + first, n, args.out + t * columns);
    }
  }
  const float* gate = p.state_->tile(thread, 0);
  const float* up = p.state_->tile(thread, 1);
  for (int64_t t = 0; t < tokens; ++t) {
    float* out = buffer(op.out, args.token_begin + t) + op.parts[0].column + args.block_begin * 16;
    p.table_.gate_mul(op.gate, gate + t * columns, up + t * columns, columns, out);
  }
}

void Executor::rope_kv(size_t index, const RopeKvOp& op) {
  const KvLayer& kv = p.kv_->layer(op.layer);
  const KernelTable& table = p.table_;
  const RopeTable* rope = op.rope < 0 ? nullptr : &p.ropes_[static_cast<size_t>(op.rope)];
  const float* q_norm = vector(op.q_norm);
  const float* k_norm = vector(op.k_norm);
  const int64_t group = op.num_heads / kv.num_kv_heads;
  const int64_t kv_group = p.kv_->group_of(op.layer);
  const int64_t d = kv.head_dim;
  const int64_t items = in.num_tokens * kv.num_kv_heads;
  const int64_t chunk = std::max<int64_t>(1, items / (p.pool_->size() * kChunksPerThread));
  int64_t begin, end;
  while (claim(index, items, chunk, &begin, &end)) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / kv.num_kv_heads;
      const int64_t head = i % kv.num_kv_heads;
      const int64_t position = in.positions[t];
      float* row = buffer(op.qkv, t);
      const auto norm_and_rotate = [&](float* x, const float* norm) {
        if (norm != nullptr) table.rms_norm(x, norm, d, op.eps, x);
        if (rope == nullptr) return;
        const int64_t half = rope->rotary_dim / 2;
        table.rope(x, rope->cos + position * half, rope->sin + position * half, rope->rotary_dim);
      };
      float* k = row + op.k_column + head * d;
      norm_and_rotate(k, k_norm);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        norm_and_rotate(row + op.q_column + h * d, q_norm);
      }
      // The sequence of a token: the last one that begins at or before it.
      const int32_t* next = std::upper_bound(in.query_start, in.query_start + in.num_sequences + 1,
                                             static_cast<int32_t>(t));
      const int64_t sequence = next - in.query_start - 1;
      const int32_t block = in.block_table(sequence, kv_group)[position / kv.block_size];
      table.kv_write(kv, block, position % kv.block_size, head, k, row + op.v_column + head * d);
    }
  }
}

void Executor::attention(size_t index, const AttentionOp& op, int thread) {
  AttentionPlan& plan = p.plans_[static_cast<size_t>(p.op_plan_[index])];
  const KvLayer& kv = p.kv_->layer(op.layer);
  const int64_t group = plan.shape().q_per_kv;
  const int64_t kv_group = p.kv_->group_of(op.layer);
  const int64_t d = kv.head_dim;
  const auto& tasks = plan.tasks();
  int64_t i, end;
  while (claim(index, static_cast<int64_t>(tasks.size()), 1, &i, &end)) {
    const AttentionTask& task = tasks[static_cast<size_t>(i)];
    const int64_t first_head = task.kv_head * group;
    float* out = buffer(op.out, task.query_begin) + first_head * d;
    AttentionArgs args{};
    args.kv = &kv;
    args.block_table = in.block_table(task.sequence, kv_group);
    args.kv_head = task.kv_head;
    args.q_per_kv = group;
    args.num_queries = task.num_queries;
    args.query_position = task.query_position;
    args.kv_begin = task.kv_begin;
    args.kv_end = task.kv_end;
    args.window = op.window;
    args.scale = op.scale;
    args.q = buffer(op.qkv, task.query_begin) + op.q_column + first_head * d;
    args.q_stride = op.qkv.width;
    args.out = out;
    args.out_stride = op.out.width;
    args.batch_invariant = p.batch_invariant_;
    args.scratch = p.state_->scratch(thread);
    if (task.merge >= 0) {
      const AttentionMerge& merge = plan.merge(task.merge);
      float* partial = p.state_->partial() + merge.partial_row * plan.row_floats();
      args.partial = partial + task.part * group * plan.row_floats();
      p.table_.attention(args);
      if (!plan.last_part(task.merge)) continue;
      p.table_.attention_merge(partial, merge.parts, group, d, out, d);
    } else {
      p.table_.attention(args);
    }
    if (op.gate_column < 0) continue;
    for (int64_t q = 0; q < task.num_queries; ++q) {
      for (int64_t h = 0; h < group; ++h) {
        const float g = buffer(op.qkv, task.query_begin + q)[op.gate_column + first_head + h];
        p.table_.scale(1.0f / (1.0f + std::exp(-g)), d, out + q * op.out.width + h * d);
      }
    }
  }
  if (thread == 0) p.state_->count(p.table_.attention_name);
}

}  // namespace edge_infer
