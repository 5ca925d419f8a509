#include "isa/isa.h"

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#endif

namespace edge_infer {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  if (__get_cpuid_max(leaf & 0x80000000u, nullptr) < leaf) return r;
  __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
  return r;
}

bool bit(unsigned word, int i) { return (word >> i) & 1u; }

// XCR0: the register state that the OS saves. Only valid when CPUID.1:ECX.OSXSAVE is set.
unsigned long long xgetbv0() {
  unsigned lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (static_cast<unsigned long long>(hi) << 32) | lo;
}

// Linux grants tile data per process, on request (Documentation/arch/x86/xstate.rst).
bool request_amx_permission() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

std::string brand_string() {
  if (cpuid(0x80000000u).a < 0x80000004u) return {};
  char text[49] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i);
    const unsigned words[4] = {r.a, r.b, r.c, r.d};
    std::memcpy(text + 16 * i, words, 16);
  }
  std::string s(text);
  const size_t first = s.find_first_not_of(' ');
  return first == std::string::npos ? std::string() : s.substr(first);
}

CpuFeatures detect() {
  CpuFeatures f;
  const Registers r0 = cpuid(0);
  char vendor[13] = {};
  std::memcpy(vendor, &r0.b, 4);
  std::memcpy(vendor + 4, &r0.d, 4);
  std::memcpy(vendor + 8, &r0.c, 4);
  f.vendor = vendor;
  f.brand = brand_string();

  const Registers r1 = cpuid(1);
  if (!bit(r1.c, 27)) return f;  // no OSXSAVE: nothing past SSE may be used
  const unsigned long long xcr0 = xgetbv0();
  const bool os_ymm = (xcr0 & 0x6) == 0x6;
  const bool os_zmm = (xcr0 & 0xE6) == 0xE6;
  const bool os_tile = (xcr0 & 0x60000) == 0x60000;

  const Registers r7 = cpuid(7);
  const Registers r71 = r7.a >= 1 ? cpuid(7, 1) : Registers{};
  f.avx2 = os_ymm && bit(r1.c, 28) && bit(r1.c, 12) && bit(r1.c, 29) && bit(r7.b, 5);
  f.avx_vnni = f.avx2 && bit(r71.a, 4);
  const bool avx512 =
      f.avx2 && os_zmm && bit(r7.b, 16) && bit(r7.b, 17) && bit(r7.b, 30) && bit(r7.b, 31);
  f.avx512_vnni = avx512 && bit(r7.c, 11);
  f.avx512_bf16 = avx512 && bit(r71.a, 5);
  f.fast_bf16_products = f.avx512_bf16 && f.vendor == "AuthenticAMD";
  f.amx_int8 = f.avx512_vnni && os_tile && bit(r7.d, 24) && bit(r7.d, 25) && bit(r7.d, 22);
  f.amx_permission = f.amx_int8 && request_amx_permission();
  return f;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

bool isa_available(Isa isa) {
  const CpuFeatures& f = cpu_features();
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return f.avx2;
    case Isa::kAvx512Vnni: return f.avx512_vnni;
    case Isa::kAmx: return f.amx_int8 && f.avx512_bf16 && f.amx_permission;
  }
  return false;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAmx}) {
    if (isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512Vnni: return "avx512vnni";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

Isa parse_isa(const std::string& name) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAmx}) {
    if (name == isa_name(isa)) return isa;
  }
  throw std::invalid_argument("unknown ISA '" + name +
                              "': the names are scalar, avx2, avx512vnni and amx");
}

Isa selected_isa() {
  const std::vector<Isa> isas = available_isas();
  const char* forced = std::getenv("EDGE_INFER_ISA");
  if (forced == nullptr || *forced == '\0') return isas.back();
  const Isa isa = parse_isa(forced);
  if (!isa_available(isa)) {
    std::string have;
    for (Isa i : isas) have += (have.empty() ? "" : ", ") + std::string(isa_name(i));
    throw std::invalid_argument("EDGE_INFER_ISA=" + std::string(forced) +
                                ": this machine cannot run it; it can run " + have);
  }
  return isa;
}

}  // namespace edge_infer
