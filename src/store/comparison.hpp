#pragma once
// The comparison of two checkpoints bit for bit, with the size of the difference: tensor by tensor,
// and in groups of tensors whose names begin alike.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/store/open.hpp"

namespace choir {

/// The comparison of the tensors whose names begin alike: "parameters", "optimizer/m".
struct TensorGroup {
  std::size_t tensors = 0, equal = 0;
  std::size_t incomparable = 0;  ///< in one checkpoint only, or of another type or shape
  double largest = 0;            ///< of |a - b| of reals; not finite if a number is not
  bool measured = false;         ///< false if no tensor of reals differs
};

struct CheckpointComparison {
  std::map<std::string, TensorGroup> groups;
  /// A line for each tensor that differs: where first, and for reals by how much. Tensors that
  /// cannot be compared come first, then those whose difference is largest beside their norm.
  std::vector<std::string> differences;
  std::size_t tensors = 0;  ///< of the first checkpoint
  std::int64_t bytes = 0;   ///< of its tensors that the second one has, too

  /// "  optimizer/m: 0 of 76 equal, 76 differ, at most by 3.0e-04", a line for each group.
  std::string group_lines() const;
};

/// Local. Compares the tensors of two opened checkpoints, and those of their bases, bit for bit.
/// Throws StorageError if a file cannot be read.
CheckpointComparison compare_tensors(const Checkpoint& a, const Checkpoint& b);

}  // namespace choir
