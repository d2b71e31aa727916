#pragma once
// The results of a training run as logical tensors without a layout, and the distance between two
// runs.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/store/stored_tensor.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// The compared quantities, each with a tolerance of its own.
enum class Quantity { loss, gradient_norm, parameter, gradient, moment, state };
inline constexpr int kQuantities = 6;
std::string_view name_of(Quantity quantity);
template <class T>
struct ByQuantity : std::array<T, kQuantities> {
  T& operator[](Quantity q) { return this->at(static_cast<std::size_t>(q)); }
  const T& operator[](Quantity q) const { return this->at(static_cast<std::size_t>(q)); }
};

/// The parameters, moments, running statistics and gradients of the last step that this rank holds.
/// Local.
std::vector<StoredTensor> held_tensors(Engine& engine);
/// The elements of them that this rank owns: over all ranks of the mesh every element once. Local.
std::vector<StoredTensor> owned_tensors(Engine& engine);

/// The results of a run of one rank.
struct RunRecord {
  struct Tensor {
    std::string name, shape;
    std::int64_t first = 0, count = 0;  ///< range in `values`
    double scale = 1;                   ///< errors are relative to it
  };
  std::vector<double> losses, norms;  ///< by step
  std::vector<Tensor> tensors;
  std::vector<double> values;

  /// Takes the tensors that an engine of one rank holds, and their scales: max(1, max|a|) for
  /// parameters and states, max|a| for gradients and moments, but at least 1/1000 of the largest of
  /// its kind (a gradient that is only rounding has no digits to compare). Local.
  void take(Engine& engine);
  /// Copies the record of rank 0 to all ranks. Collective.
  void share(Communicator& ranks);
};
Quantity quantity_of(const RunRecord::Tensor& tensor);

/// The distance of a run from the reference, as seen by one rank and, after combine(), by all.
struct RunDistance {
  /// Relative max|a-b|: for losses and norms of each step relative to max(1, |a|), for every tensor
  /// of the record relative to its scale. Infinite for NaN.
  std::vector<double> losses, norms, tensors;
  /// A digest of the boundaries of each tensor's pieces; it has the expected value if they tile the
  /// tensor.
  std::vector<std::int64_t> tiling;

  /// Starts with distances of zero.
  explicit RunDistance(const RunRecord& reference);
  void add_step(const RunRecord& reference, std::size_t step, const StepResult& result);
  /// Adds the tensors of this rank. Local. Throws Error if they are not the tensors of the record.
  void add_tensors(const RunRecord& reference, const std::vector<StoredTensor>& held,
                   const std::vector<StoredTensor>& owned);
  /// Combines the largest distances and all tilings. Collective.
  void combine(Communicator& ranks);
  /// The names of tensors with an element that no rank or several ranks own.
  std::vector<std::string> badly_tiled(const RunRecord& reference) const;
};

/// The distance between two records of the same deck, by the same measure. Local.
RunDistance distance_of(const RunRecord& reference, const RunRecord& other);

}  // namespace choir
