#pragma once
// What a rank allocates, by name. Filled while the real step runs on the null device; `train`
// allocates exactly this and `plan` prints it.
#include <cstddef>
#include <string>
#include <vector>

namespace choir {

/// Memory of the device that computes (on the cpu that is host memory), host memory beside it, or a
/// file on a local disk.
enum class MemoryPlace { device, host, file };
constexpr const char* name_of(MemoryPlace place) {
  return place == MemoryPlace::device ? "device" : place == MemoryPlace::host ? "host" : "file";
}

struct MemoryPlan {
  struct Entry {
    std::string name;  ///< "parameters", "gradients", "optimizer", "activations" ...
    std::size_t bytes = 0;
    bool shared = false;  ///< lives in a node-shared window rather than private memory
    MemoryPlace place = MemoryPlace::device;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  bool operator==(const MemoryPlan&) const = default;

  void add(std::string name, std::size_t bytes, bool shared = false,
           MemoryPlace place = MemoryPlace::device);
  std::size_t total(MemoryPlace place = MemoryPlace::device) const;
  /// Wherever they are.
  std::size_t bytes_of(const std::string& name) const;
  /// Table with one line an entry and a total of each place, in MiB.
  std::string to_string() const;
};

}  // namespace choir
