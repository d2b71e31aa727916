#pragma once
// The Newton-Schulz iteration of Muon: x = a x + (b s + c s s) x with s = x x^T, a triple (a, b, c)
// for each step, on x = U / |U|. It moves all singular values towards 1; with most sets of
// coefficients they end near it (simple: 0.68 to 1.13 for those above a hundredth of the norm).

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct NewtonSchulzTriple {
  double a = 0, b = 0, c = 0;
};

/// A named set of coefficients; `norm_factor` multiplies the norm by which U is divided.
struct NewtonSchulzSet {
  std::string_view name;
  std::span<const NewtonSchulzTriple> triples;
  double norm_factor = 1;
};

/// Sources: simple is of Jordan et al. 2024 (github.com/KellerJordan/Muon), quintic and
/// polar_express (Amsel et al. 2025, arXiv:2505.16932, rounded) are those of Emerging-Optimizers,
/// polar_express_nanochat is the latter without rounding, with the norm times 1.01; deepseekv4 is 8
/// x simple and 2 x (2, -1.5, 0.5).
std::span<const NewtonSchulzSet> newton_schulz_sets();
/// Throws Error for a name that is not among them.
const NewtonSchulzSet& newton_schulz_set(std::string_view name);

/// FLOPs of one step on a matrix [rows, columns]: 4 m^2 n + 2 m^3, where m is the smaller extent.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns);

/// The iteration on matrices of one type, one after the other, in memory for the largest. The order
/// of all sums depends on the shape alone. Products are computed in the type of the matrix.
class NewtonSchulz {
 public:
  /// steps 0: as many as the set has triples; beyond them the last one is repeated.
  NewtonSchulz(const NewtonSchulzSet& set, std::int64_t steps);
  std::int64_t steps() const { return static_cast<std::int64_t>(triples_.size()); }

  /// Makes memory for matrices of these extents. Local.
  struct Extents {
    std::int64_t rows = 0, columns = 0;
  };
  void reserve(Device& device, DType dtype, std::span<const Extents> extents);
  /// x [rows, columns] in place; |x| counts as at least 1e-7, so that a matrix of zeros stays zero.
  /// Local.
  void orthogonalise(const Stream& stream, const TensorView& x);
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<NewtonSchulzTriple> triples_;
  double norm_factor_;
  Buffer memory_;
  TensorView square_sum_, chunk_sums_;    // f64
  TensorView gram_, polynomial_, moved_;  // [m, m], [m, m], [rows, columns]
};

}  // namespace choir
