#include "choir/core/memory_plan.hpp"

#include <fmt/core.h>

#include <utility>

namespace choir {

void MemoryPlan::add(std::string name, std::size_t bytes, bool shared, MemoryPlace place) {
  for (Entry& entry : entries)
    if (entry.name == name && entry.shared == shared && entry.place == place) {
      entry.bytes += bytes;
      return;
    }
  entries.push_back({std::move(name), bytes, shared, place});
}

std::size_t MemoryPlan::total(MemoryPlace place) const {
  std::size_t sum = 0;
  for (const Entry& entry : entries)
    if (entry.place == place) sum += entry.bytes;
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
  const auto line = [](const std::string& name, std::size_t bytes, const char* remark) {
    return fmt::format("  {:<28} {:>12.3f} MiB{}", name, static_cast<double>(bytes) / kMiB, remark);
  };
  std::string text;
  for (const Entry& entry : entries)
    text += line(entry.name, entry.bytes,
                 entry.place == MemoryPlace::host   ? "  host memory"
                 : entry.place == MemoryPlace::file ? "  file"
                 : entry.shared                     ? "  shared"
                                                    : "") +
            "\n";
  text += line("total per rank", total(), "");
  for (const auto& [place, name] :
       {std::pair(MemoryPlace::host, "host memory per rank"), {MemoryPlace::file, "file per rank"}})
    if (total(place) > 0) text += "\n" + line(name, total(place), "");
  return text;
}

}  // namespace choir
