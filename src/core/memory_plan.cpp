#include "choir/core/memory_plan.hpp"

#include <fmt/core.h>

namespace choir {

void MemoryPlan::add(std::string name, std::size_t bytes, bool shared) {
  for (Entry& entry : entries)
    if (entry.name == name && entry.shared == shared) {
      entry.bytes += bytes;
      return;
    }
  entries.push_back({std::move(name), bytes, shared});
}

std::size_t MemoryPlan::total() const {
  std::size_t sum = 0;
  for (const Entry& entry : entries) sum += entry.bytes;
  return sum;
}

std::size_t MemoryPlan::bytes_of(const std::string& name) const {
  std::size_t sum = 0;
  for (const Entry& entry : entries)
    if (entry.name == name) sum += entry.bytes;
  return sum;
}

std::string MemoryPlan::to_string() const {
  constexpr double kMiB = 1024.0 * 1024.0;
  std::string text;
  for (const Entry& entry : entries)
    text += fmt::format("  {:<28} {:>12.3f} MiB{}\n", entry.name,
                        static_cast<double>(entry.bytes) / kMiB, entry.shared ? "  shared" : "");
  return text + fmt::format("  {:<28} {:>12.3f} MiB", "total per rank",
                            static_cast<double>(total()) / kMiB);
}

}  // namespace choir
