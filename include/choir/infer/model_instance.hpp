#pragma once
// A model with its parameters and working memory on one device: what training, evaluation and
// generation share.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/deck/pipeline_options.hpp"
#include "choir/infer/freezing.hpp"
#include "choir/models/family.hpp"
#include "choir/parallel/sharding/parameter_gatherer.hpp"
#include "choir/parallel/sharding/statistics_storage.hpp"

namespace choir {

class ModelInstance {
 public:
  struct Options {
    ModelConfig model;
    Precision precision;
    std::uint64_t seed = 0;
    bool training = false;  ///< with gradients
    bool sequence = false;  ///< sequence parallelism along the tensor axis
    ContextWay context{};   ///< how ranks meet that share positions
    /// Results do not depend on the layout, to the last bit: see ModelCut::separate_tied and
    /// Summation::tree.
    bool reproducible = false;
    ZeroOptions zero{};
    PipelineOptions pipeline{};
    OffloadOptions offload{};
    Freezing freezing{};  ///< with gradients only
  };
  /// Collective over the mesh. `arena_bytes` as planned; Arena::kUnbounded on the null device.
  ModelInstance(const Options& options, Device& device, Mesh& mesh, std::size_t arena_bytes);
  ModelInstance(const ModelInstance&) = delete;

  Model& model() { return *model_; }
  /// The model as its family knows it, `Gpt` for example. Throws Error if it is another.
  template <class Kind>
  Kind& as() {
    auto* const model = dynamic_cast<Kind*>(model_.get());
    CHOIR_CHECK(model != nullptr, "a model of another family");
    return *model;
  }
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
  /// Another micro-batch in flight, on the same stream and arena.
  std::unique_ptr<Pass> make_pass();

  /// Collective over all axes but data: through all stages without gradients, of a batch of whole
  /// sequences in host memory. What the last piece returns (Model::forward) on the last stage,
  /// empty on the others. Where parameters are sharded, their ranks must call it equally often.
  Tensor forward(Mode mode, const ModelBatch& batch);
  /// The ranks that share what fields of micro-batches say that they can; those of the context axis
  /// share nothing in generation.
  BatchRanks batch_ranks(Mode mode) const;
  /// Memory of what a batch has on this rank where it is not that of the host.
  using BatchMemory = std::array<Tensor, ModelBatch::kMostFields>;
  /// A batch of whole sequences in host memory, as this rank's model reads it in this mode.
  ModelBatch part_of(const ModelBatch& batch, Mode mode, BatchMemory& memory);
  const std::vector<LossTerm>& loss_terms() const { return loss_terms_; }
  /// As forward(): this rank's part of the sum of the losses of each term. The sums are over the
  /// ranks of the context and the pipeline axis (the last stage has all of them). 0 on the null
  /// device.
  ByTerm loss_sums(const ModelBatch& batch);
  /// The same of a loss of one term.
  double loss_sum(const ModelBatch& batch);
  void add_to(MemoryPlan& plan) const;

 private:
  /// A field of a batch in host memory: itself where the device sees it, else a copy.
  Tensor on_device(const TensorView& host);
  /// This rank's share of a field, likewise.
  Tensor share_on_device(const ModelBatch& batch, const BatchField& host, const BatchRanks& ranks);

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
  std::vector<LossTerm> loss_terms_;
  Buffer tables_, sums_;
  std::vector<std::byte> share_;  // of an evaluation batch
};

}  // namespace choir
