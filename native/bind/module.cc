#include "bind/bind.h"

NB_MODULE(_native, m) {
  m.doc() = "The native core of edge-infer: ISA detection, kernels and the step program.";
  edge_infer::bind_isa(m);
  edge_infer::bind_program(m);
}
