#include "memory_text.hpp"

#include <vector>

#include "choir/core/clock.hpp"
#include "choir/core/text.hpp"

namespace choir {

std::string memory_text(const MemoryPlan& plan) {
  std::vector<std::string> parts;
  for (const MemoryPlan::Entry& entry : plan.entries)
    if (entry.bytes > 0 && entry.place == MemoryPlace::device)
      parts.push_back(entry.name + " " + format_bytes(static_cast<double>(entry.bytes)));
  return join(parts, " + ");
}

double parameter_bytes(const MemoryPlan& plan) {
  double bytes = 0;
  for (const MemoryPlan::Entry& entry : plan.entries)
    if (entry.place == MemoryPlace::device && entry.name.starts_with("parameters"))
      bytes += static_cast<double>(entry.bytes);
  return bytes;
}

}  // namespace choir
