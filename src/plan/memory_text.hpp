#pragma once
// Private to the tuners: a memory plan in one line, for messages.
#include <string>

#include "choir/core/memory_plan.hpp"

namespace choir {

/// "parameters, master 12.0 MiB + gradients 12.0 MiB + ...": memory of the device.
std::string memory_text(const MemoryPlan& plan);
/// Bytes of all entries of parameters there.
double parameter_bytes(const MemoryPlan& plan);

}  // namespace choir
