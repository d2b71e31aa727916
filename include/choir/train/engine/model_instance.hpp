#pragma once
// A model with its parameters and working memory on one device: what training, evaluation and
// generation share.
#include <cstdint>
#include <functional>
#include <memory>

#include "choir/comm/mesh.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/model/gpt.hpp"
#include "choir/model/make_model.hpp"
#include "choir/parallel/parameter_gatherer.hpp"
#include "choir/parallel/statistics_storage.hpp"
#include "choir/train/deck/pipeline_options.hpp"
#include "choir/train/engine/freezing.hpp"

namespace choir {

class ModelInstance {
 public:
  struct Options {
    ModelConfig model;
    Precision precision;
    std::uint64_t seed = 0;
    bool training = false;  ///< with gradients
    bool sequence = false;  ///< sequence parallelism along the tensor axis
    ZeroOptions zero{};
    PipelineOptions pipeline{};
    OffloadOptions offload{};
    Freezing freezing{};                ///< with gradients only
    bool separate_tied = false;         ///< see ModelCut
    Summation order = Summation::fast;  ///< of sums over the tensor axis
    /// Changes descriptions of parameters before anything but local shapes is derived from them.
    /// For negative controls: tests that break a rule on purpose and must see the difference.
    std::function<void(ParameterSet&)> alter{};
    NegativeControl control = NegativeControl::none;
  };
  /// Collective over the mesh. `arena_bytes` as planned; Arena::kUnbounded on the null device.
  ModelInstance(const Options& options, Device& device, Mesh& mesh, std::size_t arena_bytes);
  ModelInstance(const ModelInstance&) = delete;

  Model& model() { return *model_; }
  /// What only language models have: caches and generation. Error for other models.
  Gpt& gpt();
  Pass& pass() { return pass_; }
  Arena& arena() { return arena_; }
  Device& device() const { return *device_; }
  const Stream& stream() const { return stream_; }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  ParameterStorage& storage() { return *storage_; }
  const ParameterStorage& storage() const { return *storage_; }
  StatisticsStorage& statistics() { return statistics_; }
  ParameterGatherer& gatherer() { return *gatherer_; }
  /// For passes that need no gradients.
  BucketHooks& hooks() { return *gatherer_; }
  const Options& options() const { return options_; }
  WorkCounter& work() { return work_; }

  /// Collective over the ranks that share parameters: the initial ones, or new masters, become what
  /// the model computes with.
  void initialise(std::uint64_t seed);
  void publish() { gatherer_->publish(stream_); }

  /// The pipeline axis, for memory of the device.
  Communicator& stages() const { return mesh_->along(Axis::pipeline); }
  Mesh& mesh() const { return *mesh_; }
  const ContextAxis& context() const { return pass_.context(); }
  /// Another micro-batch in flight, on the same stream and arena.
  std::unique_ptr<Pass> make_pass();

  /// Collective over all axes but data: through all stages without gradients, of a batch of whole
  /// sequences in host memory. What the last piece returns (Model::forward) on the last stage,
  /// empty on the others. Where parameters are sharded, their ranks must call it equally often.
  Tensor forward(Mode mode, const ModelBatch& batch);
  /// As forward(): this rank's term of the sum of the losses. The sum is over the ranks of the
  /// context and the pipeline axis (the last stage has all of it). 0 on the null device.
  double loss_sum(const ModelBatch& batch);
  void add_to(MemoryPlan& plan) const;

 private:
  /// A field of a batch in host memory: itself where the device sees it, else a copy.
  Tensor on_device(const TensorView& host);
  /// This rank's share of ids or targets [B*T] of the pass, likewise.
  Tensor share_on_device(const TensorView& host, std::int32_t padding);

  Options options_;
  Device* device_;
  Mesh* mesh_;
  WorkCounter work_;
  Stream stream_;
  ParameterSet parameters_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParameterStorage> storage_;
  StatisticsStorage statistics_;
  std::unique_ptr<ParameterGatherer> gatherer_;
  Arena arena_;
  Pass pass_;
  Buffer tables_, scalar_;
  std::vector<std::int32_t> cut_;  // a share of an evaluation batch
};

}  // namespace choir
