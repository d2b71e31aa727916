#pragma once
// What a rank allocates, by name. Filled while the real step runs on the null device; `train`
// allocates exactly this and `plan` prints it.
#include <cstddef>
#include <string>
#include <vector>

namespace choir {

struct MemoryPlan {
  struct Entry {
    std::string name;  ///< "parameters", "gradients", "optimizer", "activations" ...
    std::size_t bytes = 0;
    bool shared = false;  ///< lives in a node-shared window rather than private memory
  };
  std::vector<Entry> entries;

  void add(std::string name, std::size_t bytes, bool shared = false);
  std::size_t total() const;
  std::size_t bytes_of(const std::string& name) const;
  /// Table with one line an entry and a total, in MiB.
  std::string to_string() const;
};

}  // namespace choir
