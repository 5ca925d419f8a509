// What this CPU can run and what the operating system grants. Compiled without ISA flags.
#pragma once

#include <string>
#include <vector>

namespace edge_infer {

// Kernel paths, each one at or above those before it on the same architecture.
enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvx512Vnni = 2, kAmx = 3 };

struct CpuFeatures {
  bool avx2 = false;  // with fma, f16c, and the OS saving YMM state
  bool avx_vnni = false;
  bool avx512_vnni = false;  // with f, bw, dq, vl, and the OS saving ZMM state
  bool avx512_bf16 = false;
  bool fast_bf16_products = false;  // vdpbf16ps as fast as an fma
  bool amx_int8 = false;            // with tile, bf16 and the OS saving tile state
  bool amx_permission = false;      // granted to this process by arch_prctl
  std::string vendor;
  std::string brand;
};

// Detected once; on a CPU with AMX this asks the kernel for the tile permission.
const CpuFeatures& cpu_features();

bool isa_available(Isa isa);
std::vector<Isa> available_isas();  // lowest first
const char* isa_name(Isa isa);      // "scalar", "avx2", "avx512vnni", "amx"

// The ISA to run: EDGE_INFER_ISA when set, otherwise the best available.
// Throws std::invalid_argument that names the value and what this machine has
// when the variable is unknown or asks for more than the machine can run.
Isa selected_isa();
Isa parse_isa(const std::string& name);  // throws std::invalid_argument

}  // namespace edge_infer
