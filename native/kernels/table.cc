#include "kernels/table.h"

namespace edge_infer {
namespace {

KernelTable build(Isa isa) {
  KernelTable t{};
  fill_linear_scalar(t);
  fill_attention_scalar(t);
  fill_elementwise_scalar(t);
#if defined(__x86_64__)
  if (isa >= Isa::kAvx2) {
    fill_linear_avx2(t);
    fill_attention_avx2(t);
    fill_elementwise_avx2(t);
  }
  if (isa >= Isa::kAvx512Vnni) {
    fill_linear_avx512vnni(t);
    fill_attention_avx512vnni(t);
    fill_elementwise_avx512vnni(t);
    const bool fast = cpu_features().fast_bf16_products;
    if (fast || isa >= Isa::kAmx) fill_linear_avx512bf16(t, fast);
  }
  if (isa >= Isa::kAmx) fill_linear_amx(t);
#endif
  t.isa = isa;
  return t;
}

// Tiles sum bf16 products in an order that rows, which one token takes, cannot follow. Sums of
// int8 products are exact: there tiles and rows agree.
KernelTable batch_invariant(KernelTable t) {
  t.bf16_panel_min_tokens = INT64_MAX;
  t.int4_w4a16 = t.int4_w4a16_invariant;
  t.int8_w8a16 = t.int8_w8a16_invariant;
  return t;
}

}  // namespace

ActivationLayout activation_layout(const KernelTable& t, ActivationType type, int64_t tokens) {
  const bool panels = (type == ActivationType::kInt8 && tokens >= t.int8_panel_min_tokens) ||
                      (type == ActivationType::kBF16 && tokens >= t.bf16_panel_min_tokens);
  return panels ? ActivationLayout::kPanels : ActivationLayout::kRows;
}

const LinearKernel& linear_kernel(const KernelTable& t, WeightFormat format, ActivationType type,
                                  ActivationLayout layout) {
  const bool int8 = type == ActivationType::kInt8;
  const bool panels = layout == ActivationLayout::kPanels;
  switch (format) {
    case WeightFormat::kInt4:
      if (panels) return int8 ? t.int4_w4a8_panels : t.int4_w4a16_panels;
      return int8 ? t.int4_w4a8 : t.int4_w4a16;
    case WeightFormat::kInt8:
      if (panels) return int8 ? t.int8_w8a8_panels : t.int8_w8a16_panels;
      return int8 ? t.int8_w8a8 : t.int8_w8a16;
    case WeightFormat::kBF16: return t.dense_bf16;
    case WeightFormat::kF16: return t.dense_f16;
    case WeightFormat::kF32: return t.dense_f32;
  }
  return t.dense_f32;
}

const KernelTable& kernel_table(Isa isa) {
  // Built on first use and only for ISAs this machine has: a filler is compiled
  // with its own ISA flags, so calling it elsewhere could already be illegal.
  static const KernelTable scalar = build(Isa::kScalar);
  if (isa == Isa::kScalar) return scalar;
  static const KernelTable avx2 = build(Isa::kAvx2);
  if (isa == Isa::kAvx2) return avx2;
  static const KernelTable avx512vnni = build(Isa::kAvx512Vnni);
  if (isa == Isa::kAvx512Vnni) return avx512vnni;
  static const KernelTable amx = build(Isa::kAmx);
  return amx;
}

const KernelTable& batch_invariant_kernel_table(Isa isa) {
  static const KernelTable scalar = batch_invariant(kernel_table(Isa::kScalar));
  if (isa == Isa::kScalar) return scalar;
  static const KernelTable avx2 = batch_invariant(kernel_table(Isa::kAvx2));
  if (isa == Isa::kAvx2) return avx2;
  static const KernelTable avx512vnni = batch_invariant(kernel_table(Isa::kAvx512Vnni));
  if (isa == Isa::kAvx512Vnni) return avx512vnni;
  static const KernelTable amx = batch_invariant(kernel_table(Isa::kAmx));
  return amx;
}

}  // namespace edge_infer
