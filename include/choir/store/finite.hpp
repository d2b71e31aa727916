#pragma once
// NaN and infinity in weights: they are found where weights are read, by tensor and element,
// because a model computes with them without an error and its answers then mean nothing.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/stored_tensor.hpp"
#include "choir/store/tensor_reader.hpp"

namespace choir {

/// Elements of one tensor that are NaN or infinite.
struct NotFinite {
  std::int64_t count = 0;
  std::int64_t first = -1;  ///< the lowest index of one; -1 where there is none

  /// Looks at elements [at, at + elements) of the tensor. Whole numbers are always finite.
  void look(const void* data, DType dtype, std::int64_t elements, std::int64_t at);
};

/// The weights that an import reads of one file, of which every rank reads a share once.
class FiniteCheck {
 public:
  /// Local. Elements [at, at + elements) of the tensor `name` of the file.
  void look(const std::string& name, const void* data, DType dtype, std::int64_t elements,
            std::int64_t at);
  /// Collective. DataError on every rank, with the name, the count and the first element of each
  /// tensor that is not finite.
  void require(const TensorReader& file, Communicator& world) const;

 private:
  std::map<std::string, NotFinite> found_;
};

/// Collective, after a load. NumericError on every rank when weights of the checkpoint at `path`
/// are not finite; it names the tensors. Ranks may hold the same elements.
void require_finite(const std::vector<StoredTensor>& tensors, const std::string& path,
                    Communicator& world);

}  // namespace choir
