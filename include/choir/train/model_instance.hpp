#pragma once
// A model with its parameters and working memory on one device: what training, evaluation and
// generation share.
#include <cstdint>
#include <functional>
#include <memory>

#include "choir/comm/mesh.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/model/gpt.hpp"
#include "choir/parallel/parameter_storage.hpp"

namespace choir {

/// One micro-batch: [B*T] i32 each; targets < 0 are ignored.
struct TokenBatch {
  TensorView inputs, targets;
  std::int64_t first_sample = 0;  ///< global index of its first sequence
  std::int64_t sequences = 0;
  /// Device scalar added to first_sample; nullptr: 0.
  const std::int64_t* first_sample_on_device = nullptr;
};

class ModelInstance {
 public:
  struct Options {
    GptConfig model;
    Precision precision;
    std::uint64_t seed = 0;
    bool training = false;              ///< with gradients
    bool sequence = false;              ///< sequence parallelism along the tensor axis
    Summation order = Summation::fast;  ///< of sums over the tensor axis
    /// Changes descriptions of parameters before anything but local shapes is derived from them.
    /// For negative controls: tests that break a rule on purpose and must see the difference.
    std::function<void(ParameterSet&)> alter{};
    NegativeControl control = NegativeControl::none;
  };
  /// Collective over the mesh. `arena_bytes` as planned; Arena::kUnbounded on the null device.
  ModelInstance(const Options& options, Device& device, Mesh& mesh, std::size_t arena_bytes);
  ModelInstance(const ModelInstance&) = delete;

  Gpt& model() { return model_; }
  Pass& pass() { return pass_; }
  Arena& arena() { return arena_; }
  Device& device() const { return *device_; }
  const Stream& stream() const { return stream_; }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  ParameterStorage& storage() { return *storage_; }
  const Options& options() const { return options_; }
  WorkCounter& work() { return work_; }

  /// Collective over the tensor axis: the sum of per-token losses of a batch in host memory, no
  /// gradients. 0 on the null device.
  double loss_sum(const TokenBatch& batch);
  void add_to(MemoryPlan& plan) const;

 private:
  /// `host` itself where the device sees it, else a copy.
  Tensor on_device(const TensorView& host);

  Options options_;
  Device* device_;
  Communicator* tensor_;
  WorkCounter work_;
  Stream stream_;
  ParameterSet parameters_;
  Gpt model_;
  std::unique_ptr<ParameterStorage> storage_;
  Arena arena_;
  Pass pass_;
  Buffer tables_, scalar_;
};

}  // namespace choir
