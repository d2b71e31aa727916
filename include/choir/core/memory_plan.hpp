#pragma once
// The memory of a rank by name. The plan is filled while the real step runs on the null device;
// `train` allocates exactly this and `plan` prints it.
#include <cstddef>
#include <string>
#include <vector>

namespace choir {

/// Memory of the compute device (host memory on the cpu device), host memory beside it, or a file
/// on a local disk.
enum class MemoryPlace { device, host, file };
constexpr const char* name_of(MemoryPlace place) {
  return place == MemoryPlace::device ? "device" : place == MemoryPlace::host ? "host" : "file";
}

struct MemoryPlan {
  struct Entry {
    std::string name;  ///< "parameters", "gradients", "optimizer", "activations" ...
    std::size_t bytes = 0;
    bool shared = false;  ///< in a node-shared window, not in private memory
    MemoryPlace place = MemoryPlace::device;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  bool operator==(const MemoryPlan&) const = default;

  void add(std::string name, std::size_t bytes, bool shared = false,
           MemoryPlace place = MemoryPlace::device);
  std::size_t total(MemoryPlace place = MemoryPlace::device) const;
  /// The bytes of an entry in all kinds of memory.
  std::size_t bytes_of(const std::string& name) const;
  /// A table with one line per entry and the totals per kind of memory, in MiB.
  std::string to_string() const;
};

}  // namespace choir
