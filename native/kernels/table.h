// The kernel table: one per ISA, chosen once at start. A cell that an ISA does not
// fill keeps the function of the ISA below it; `name` says which one will run.
#pragma once

#include <cstdint>

#include "isa/isa.h"
#include "kernels/types.h"

namespace edge_infer {

using LinearFn = void (*)(const LinearArgs& args);

struct LinearKernel {
  LinearFn fn;
  const char* name;  // e.g. "linear_int4_w4a8_amx"
};

struct KernelTable {
  Isa isa;

  // Linears. From so many tokens on, activations of a type are laid out in panels and
  // the *_panels kernels run; without tiles that is never.
  int64_t int8_panel_min_tokens = INT64_MAX;
  int64_t bf16_panel_min_tokens = INT64_MAX;
  LinearKernel int4_w4a8;   // int4 weights, int8 activations
  LinearKernel int4_w4a16;  // int4 weights, bf16 activations
  LinearKernel int8_w8a8;
  LinearKernel int8_w8a16;
  LinearKernel int4_w4a16_invariant;  // these give a token the same bits beside any others;
  LinearKernel int8_w8a16_invariant;  // of the other kernels in rows, all do
  LinearKernel int4_w4a8_panels;
  LinearKernel int4_w4a16_panels;
  LinearKernel int8_w8a8_panels;
  LinearKernel int8_w8a16_panels;
  LinearKernel dense_bf16;  // f32 activations
  LinearKernel dense_f16;
  LinearKernel dense_f32;
  // Prepare token `token` of `a` (its k floats are at x) for the linears above.
  void (*quantize_int8)(const float* x, int64_t token, const Activations& a);
  void (*round_bf16)(const float* x, int64_t token, const Activations& a);

  // Attention.
  void (*attention)(const AttentionArgs& args);
  const char* attention_name;
  // Merge `parts` partial results of `rows` rows (part p, row r at
  // partial[(p * rows + r) * (head_dim + 2)]) into row r at out[r * out_stride].
  void (*attention_merge)(const float* partial, int64_t parts, int64_t rows, int64_t head_dim,
                          float* out, int64_t out_stride);
  // Store one head's k and v vectors (head_dim floats) at a slot.
  void (*kv_write)(const KvLayer& kv, int64_t block, int64_t slot_in_block, int64_t kv_head,
                   const float* k, const float* v);

  // Elementwise. n is any positive length.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // Rotate-half RoPE in place on one head: (x[i], x[i + rotary_dim/2]) with cos[i], sin[i].
  void (*rope)(float* x, const float* cos, const float* sin, int64_t rotary_dim);
  void (*gate_mul)(GateFunction f, const float* gate, const float* up, int64_t n, float* out);
  void (*add)(const float* x, int64_t n, float* y);  // y += x
  void (*scale)(float s, int64_t n, float* y);       // y *= s
  // One row of an embedding table in any weight format, as floats.
  void (*embed_row)(const LinearWeight& w, int64_t row, float* out);
};

// How activations of this type and number of tokens are laid out for the table's kernels.
ActivationLayout activation_layout(const KernelTable& t, ActivationType type, int64_t tokens);

// The kernel that a weight of this format runs with on these activations.
const LinearKernel& linear_kernel(const KernelTable& t, WeightFormat format, ActivationType type,
                                  ActivationLayout layout);

// Fillers, one per family and ISA: defined in kernels/<family>/<isa>.cc.
void fill_linear_scalar(KernelTable& t);
void fill_attention_scalar(KernelTable& t);
void fill_elementwise_scalar(KernelTable& t);
#if defined(__x86_64__)
void fill_linear_avx2(KernelTable& t);
void fill_attention_avx2(KernelTable& t);
void fill_elementwise_avx2(KernelTable& t);
void fill_linear_avx512vnni(KernelTable& t);
void fill_attention_avx512vnni(KernelTable& t);
void fill_elementwise_avx512vnni(KernelTable& t);
// With fast products it takes all rows of bf16 activations, else only those of int4 weights.
void fill_linear_avx512bf16(KernelTable& t, bool fast_products);
void fill_linear_amx(KernelTable& t);
#endif

// The table of `isa`, which must be available here (checked by the caller).
const KernelTable& kernel_table(Isa isa);
// The same with linears that give a token the same bits beside any number of other tokens.
const KernelTable& batch_invariant_kernel_table(Isa isa);

}  // namespace edge_infer
