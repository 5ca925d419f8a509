// The Python module, a function per topic. The only folder that sees Python.
#pragma once

#include <nanobind/nanobind.h>

namespace edge_infer {

void bind_isa(nanobind::module_& m);
void bind_program(nanobind::module_& m);

}  // namespace edge_infer
