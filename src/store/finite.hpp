#pragma once
// Checks of weights for NaN and infinity. They are found when weights are read, by tensor and
// element, because a model computes with them without an error and its answers are then
// meaningless.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/store/stored_tensor.hpp"
#include "src/store/tensor_file.hpp"

namespace choir {

/// Elements of one tensor that are NaN or infinite.
struct NotFinite {
  std::int64_t count = 0;
  std::int64_t first = -1;  ///< the lowest index of such an element; -1: none

  /// Checks elements [at, at + elements) of the tensor. Integers are always finite.
  void look(const void* data, DType dtype, std::int64_t elements, std::int64_t at);
};

/// Checks the weights that an import reads from one file; every element is read by exactly one
/// rank.
class FiniteCheck {
 public:
  /// Local. Checks elements [at, at + elements) of the tensor `name` of the file.
  void look(const std::string& name, const void* data, DType dtype, std::int64_t elements,
            std::int64_t at);
  /// Collective. Throws a DataError on every rank with the name, the count and the first element of
  /// each tensor that is not finite.
  void require(const TensorReader& file, Communicator& world) const;

 private:
  std::map<std::string, NotFinite> found_;
};

/// Collective, after a load. Throws a NumericError on every rank that names the tensors if weights
/// of the checkpoint at `path` are not finite. Ranks may hold the same elements.
void require_finite(const std::vector<StoredTensor>& tensors, const std::string& path,
                    Communicator& world);

}  // namespace choir
