#pragma once
// What a training run leaves behind, as logical tensors without a layout, and how far another run
// is from it.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/stored_tensor.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// What is compared, each with a tolerance of its own.
enum class Quantity { loss, gradient_norm, parameter, gradient, moment, state };
inline constexpr int kQuantities = 6;
std::string_view name_of(Quantity quantity);
template <class T>
struct ByQuantity : std::array<T, kQuantities> {
  T& operator[](Quantity q) { return this->at(static_cast<std::size_t>(q)); }
  const T& operator[](Quantity q) const { return this->at(static_cast<std::size_t>(q)); }
};

/// Local: what this rank holds of parameters, moments, running statistics and gradients of the last
/// step ...
std::vector<StoredTensor> held_tensors(Engine& engine);
/// ... and what it answers for: over all ranks of the mesh every element once.
std::vector<StoredTensor> owned_tensors(Engine& engine);

/// The whole of a run of one rank.
struct RunRecord {
  struct Tensor {
    std::string name, shape;
    std::int64_t first = 0, count = 0;  ///< in `values`
    double scale = 1;                   ///< errors are relative to it
  };
  std::vector<double> losses, norms;  ///< of each step
  std::vector<Tensor> tensors;
  std::vector<double> values;

  /// Local: tensors, as held by an engine of one rank, and their scales: of parameters and states
  /// max(1, max|a|), of gradients and moments max|a|, but not below 1/1000 of the largest of its
  /// kind (a gradient that is nothing but rounding has no digits to compare).
  void take(Engine& engine);
  /// Collective: as rank 0 has it.
  void share(Communicator& ranks);
};
Quantity quantity_of(const RunRecord::Tensor& tensor);

/// How far a run is from the reference, seen by one rank and, after combine(), by all.
struct RunDistance {
  /// max|a-b|, relative: of losses and norms step by step to max(1, |a|), then of every tensor of
  /// the record. Infinite where something is no number.
  std::vector<double> losses, norms, tensors;
  /// A digest of the ends of each tensor's pieces: the right one where they tile it.
  std::vector<std::int64_t> tiling;

  /// Nothing seen yet.
  explicit RunDistance(const RunRecord& reference);
  void add_step(const RunRecord& reference, std::size_t step, const StepResult& result);
  /// Local. Throws Error when the tensors are not those of the record.
  void add_tensors(const RunRecord& reference, const std::vector<StoredTensor>& held,
                   const std::vector<StoredTensor>& owned);
  /// Collective: the largest distances and all tilings.
  void combine(Communicator& ranks);
  /// Names of tensors of which some element was owned by no rank, or by several.
  std::vector<std::string> badly_tiled(const RunRecord& reference) const;
};

/// Between two records of the same deck, the same measure. Local.
RunDistance distance_of(const RunRecord& reference, const RunRecord& other);

}  // namespace choir
