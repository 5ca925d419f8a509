// A quick check of one kernel path against the scalar one, for `edge-infer doctor`.
#pragma once

#include <map>
#include <string>

#include "isa/isa.h"

namespace edge_infer {

// Kernel names by op. Throws std::runtime_error when this machine lacks the path or a
// kernel's result is off.
std::map<std::string, std::string> self_test(Isa isa);

}  // namespace edge_infer
