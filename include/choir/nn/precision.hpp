#pragma once
// Element types of computation and of optimizer state.
#include <string_view>

#include "choir/core/dtype.hpp"

namespace choir {

/// Bytes per parameter: weights that the optimizer updates, the copy that GEMMs read, the gradient,
/// two moments.
///
///   name        compute  master  gradient, moments  bytes                    remarks
///   fp64        f64      f64     f64                8 + 0 + 8 + 16 = 32      cpu only
///   fp32        f32      f32     f32                4 + 0 + 4 + 8  = 16
///   bf16-mixed  bf16     f32     f32                4 + 2 + 4 + 8  = 18
///   bf16-true   bf16     bf16    f32                2 + 0 + 4 + 8  = 14      rounds at random
///   fp16-mixed  f16      f32     f32                4 + 2 + 4 + 8  = 18      scales the loss
struct Precision {
  DType compute = DType::f32;    ///< activations and the weights that GEMMs read
  DType master = DType::f32;     ///< the weights that the optimizer updates
  DType gradient = DType::f32;   ///< gradient sums and moments
  DType statistic = DType::f32;  ///< means, log-sum-exp, per-token losses
  /// Frozen weights: stored as masters, or in the compute type, in which case there is no second
  /// copy.
  DType frozen = DType::f32;

  bool has_copy() const { return compute != master; }
  bool frozen_has_copy() const { return compute != frozen; }
  /// The type in which a weight is stored.
  DType kept(bool trainable) const { return trainable ? master : frozen; }
};

/// Returns the precision with one of the names above. Throws DeckError for other names. Frozen
/// weights have the type of masters.
Precision precision_of(std::string_view name);
/// The same with frozen weights in the compute type.
Precision with_narrow_frozen(Precision precision);

}  // namespace choir
