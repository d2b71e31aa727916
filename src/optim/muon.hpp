#pragma once
// Muon (Jordan et al. 2024, github.com/KellerJordan/Muon) as an update rule: momentum whose
// matrices are orthogonalised by Newton-Schulz. For a matrix W [A, B] with gradient G:
//
//   M = momentum M + (1 - momentum) G
//   U = (1 - momentum) G + momentum M        (nesterov; else U = M)
//   W = (1 - rate decay) W - rate f(A, B) NewtonSchulz(U)
//
//   scale                f(A, B)
//   original             sqrt(max(1, A / B))
//   match_rms_adamw      0.2 sqrt(max(A, B))
//   spectral_unclamped   sqrt(A / B)
//
// Matrices are those of hidden layers (Parameter::use), sections of stacked rows (q, k, v) each for
// itself, and kernels of convolutions as [out, in x taps]. The rate, its schedule and the decay of
// matrices are optimizer.learning_rate and optimizer.weight_decay; a factor on the rate of a
// parameter (optimizer.scale) also scales its decay. The gradient is clipped by its raw norm
// before.
//
// AdamW updates all other parameters: embeddings, heads, norms, biases, and by default the factors
// of adapters. Its rate follows the same schedule, times a constant. The state m is the momentum of
// both; v exists for the parameters of AdamW alone, except outside of the device (OffloadedState),
// where it has the size of m.
//
// Each matrix has one owner, so a step costs 5 (4 m^2 n
// + 2 m^3) FLOPs per matrix once in all, m <= n; and every rank sends its elements to the owners
// and gets their results (MatrixExchange). Skipped steps cause no work where the host can see the
// decision; on a GPU the products run, and nothing is written.

#include <cstdint>
#include <string>
#include <string_view>

#include "src/optim/update_rule.hpp"

namespace choir {

/// The values of optimizer.muon.*.
struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  std::string coefficients = "simple";  ///< a set of src/optim/newton_schulz.hpp
  std::int64_t steps = 0;               ///< of Newton-Schulz; 0: as many as the set has
  std::string scale = "original";       ///< original | match_rms_adamw | spectral_unclamped
  bool adapters = false;                ///< factors of adapters are matrices, too
  double adamw_learning_rate = 0;       ///< of all other parameters; 0: optimizer.learning_rate
  double adamw_weight_decay = -1;       ///< of the others that decay; -1: optimizer.weight_decay
};

const UpdateRule& muon_rule();

/// True for the parameters that Muon updates as matrices.
bool is_matrix(const MuonSettings& settings, const Parameter& p);

/// f(A, B) above. Throws Error for an unknown scale.
double muon_factor(std::string_view scale, std::int64_t rows, std::int64_t columns);

}  // namespace choir
