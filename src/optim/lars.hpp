#pragma once
// LARS as an update rule, and its learning rate for every tensor, computed from the norms of its
// weights and of its gradient over all ranks that hold parts of it.

#include <map>
#include <span>
#include <string>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "kernels/update/lars.hpp"
#include "src/optim/trained_norm.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {

const UpdateRule& lars_rule();

/// Tiles of a tensor and copies of a tied weight have the ratio of the whole tensor. The bits are
/// the same on every rank.
class TrustRatios {
 public:
  struct Options {
    double coefficient = 1e-3, decay = 0, epsilon = 1e-8;  ///< see ops::TrustRatios
    bool exact = false;                                    ///< see TrainedNorm
  };
  /// Masters must be on the device, f32 or f64.
  TrustRatios(const ParameterStorage& storage, Device& device, const Options& options);

  /// Collective like TrainedNorm::compute(), after ops::end_step(). `gradient` is the norm of this
  /// step's gradient, at `place`.
  void compute(const Stream& stream, std::span<Communicator* const> holders,
               const TrainedNorm& gradient, int place, const ops::StepControl* control);
  /// Device memory: the factors of ops::Lars for a trained parameter.
  const double* of(const Parameter& parameter) const;
  void add_to(MemoryPlan& plan) const;

 private:
  Options options_;
  TrainedNorm weights_;
  std::map<std::string, std::int64_t> number_;  // index of a tensor by its name
  Buffer memory_;
  TensorView begins_, ratios_;
};

}  // namespace choir
