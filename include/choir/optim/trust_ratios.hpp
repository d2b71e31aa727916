#pragma once
// LARS's learning rate of every tensor: from the norms of its weights and of its gradient, both
// over all ranks that have parts of it.
#include <map>
#include <span>
#include <string>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/lars.hpp"
#include "choir/optim/trained_norm.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Tiles of a tensor, and copies of a tied weight, have the ratio of the whole. The same bits on
/// every rank.
class TrustRatios {
 public:
  struct Options {
    double coefficient = 1e-3, decay = 0, epsilon = 1e-8;  ///< see ops::TrustRatios
    bool exact = false;                                    ///< see TrainedNorm
  };
  /// Masters must be on the device, f32 or f64.
  TrustRatios(const ParameterStorage& storage, Device& device, const Options& options);

  /// Collective as TrainedNorm::compute(), after ops::end_step(). `gradient`: the norm of this
  /// step's, and the place that it has there.
  void compute(const Stream& stream, std::span<Communicator* const> holders,
               const TrainedNorm& gradient, int place, const ops::StepControl* control);
  /// Device memory: what ops::Lars wants of a parameter that is trained.
  const double* of(const Parameter& parameter) const;
  void add_to(MemoryPlan& plan) const;

 private:
  Options options_;
  TrainedNorm weights_;
  std::map<std::string, std::int64_t> number_;  // of a tensor by its name
  Buffer memory_;
  TensorView begins_, ratios_;
};

}  // namespace choir
