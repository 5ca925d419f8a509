#include "isa/isa.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "kernels/self_test.h"

namespace nb = nanobind;

namespace edge_infer {

void bind_isa(nb::module_& m) {
  m.def(
      "cpu_features",
      [] {
        const CpuFeatures& f = cpu_features();
        nb::dict d;
        d["vendor"] = f.vendor;
        d["brand"] = f.brand;
        d["avx2"] = f.avx2;
        d["avx_vnni"] = f.avx_vnni;
        d["avx512_vnni"] = f.avx512_vnni;
        d["avx512_bf16"] = f.avx512_bf16;
        d["amx_int8"] = f.amx_int8;
        d["amx_permission"] = f.amx_permission;
        return d;
      },
      "What the CPU has and the operating system grants, by feature.");
  m.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (Isa isa : available_isas()) names.emplace_back(isa_name(isa));
        return names;
      },
      "The kernel paths this machine can run, lowest first.");
  m.def(
      "selected_isa", [] { return std::string(isa_name(selected_isa())); },
      "The kernel path in force: EDGE_INFER_ISA, or the best available.\n\n"
      "Raises ValueError when the variable asks for what this machine lacks.");
  m.def(
      "self_test", [](const std::string& isa) { return self_test(parse_isa(isa)); }, nb::arg("isa"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Run a small case of every kernel of a path against the scalar one.\n\n"
      "Returns the kernel names by op; raises RuntimeError naming the kernel that differs.");
}

}  // namespace edge_infer
