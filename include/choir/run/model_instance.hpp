#pragma once
// A model with its parameters and working memory on one device, shared by training, evaluation and
// generation.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/deck/pipeline_options.hpp"
#include "choir/models/family.hpp"
#include "choir/parallel/sharding/parameter_gatherer.hpp"
#include "choir/parallel/sharding/statistics_storage.hpp"
#include "choir/run/freezing.hpp"

namespace choir {

class ModelInstance {
 public:
  struct Options {
    ModelConfig model;
    Precision precision;
    std::uint64_t seed = 0;
    bool training = false;  ///< with gradients
    bool sequence = false;  ///< sequence parallelism along the tensor axis
    ContextWay context{};   ///< communication of the ranks that share positions
    /// If true, results do not depend on the layout, bit for bit: see ModelCut::separate_tied and
    /// Summation::tree.
    bool reproducible = false;
    ZeroOptions zero{};
    PipelineOptions pipeline{};
    OffloadOptions offload{};
    Freezing freezing{};  ///< with gradients or packed parameters only
  };
  /// Collective over the mesh. `arena_bytes` is the planned size, or Arena::kUnbounded on the null
  /// device.
  ModelInstance(const Options& options, Device& device, Mesh& mesh, std::size_t arena_bytes);
  ModelInstance(const ModelInstance&) = delete;

  Model& model() { return *model_; }
  /// The model as the type of its family, for example `Gpt`. Throws Error if it is of another
  /// family.
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
  const Options& options() const { return options_; }
  WorkCounter& work() { return work_; }

  /// Collective over the ranks that share parameters. initialise() sets the initial parameters,
  /// those that are packed only if `packed`, because a base that is loaded next replaces them all;
  /// publish() passes new masters on to the parameters that the model computes with.
  void initialise(std::uint64_t seed, bool packed = true);
  void publish() { gatherer_->publish(stream_); }

  /// The communicator of the pipeline axis, for device memory.
  Communicator& stages() const { return mesh_->along(Axis::pipeline); }
  Mesh& mesh() const { return *mesh_; }
  /// Makes a pass for another micro-batch in flight, on the same stream and arena. It gathers
  /// parameters, as pass() does; training gives it the hooks of gradients.
  std::unique_ptr<Pass> make_pass();

  /// Collective over all axes except data. Runs a batch of whole sequences in host memory through
  /// all stages, without gradients. Returns the result of the last piece (Model::forward) on the
  /// last stage, and an empty tensor on the others. If parameters are sharded, their ranks must
  /// call it equally often.
  /// Losses are collected in `losses`, if it has terms.
  Tensor forward(Mode mode, const ModelBatch& batch, const LossSums& losses = {});
  /// The ranks that share the fields of micro-batches that can be shared; in generation the ranks
  /// of the context axis share nothing.
  BatchRanks batch_ranks(Mode mode) const;
  /// Device memory of the fields of a batch, as far as it is not host memory.
  using BatchMemory = std::array<Tensor, ModelBatch::kMostFields>;
  /// The part of a batch of whole sequences in host memory that the model of this rank reads in
  /// this mode.
  ModelBatch part_of(const ModelBatch& batch, Mode mode, BatchMemory& memory);
  const std::vector<LossTerm>& loss_terms() const { return loss_terms_; }
  /// Runs forward() and returns this rank's part of the summed losses of each term; the sum over
  /// the ranks of the context and pipeline axes is the total, because every stage can add to a
  /// term. 0 on the null device.
  ByTerm loss_sums(const ModelBatch& batch);
  /// The numbers of targets behind the sums that loss_sums() has returned last.
  const ByTerm& counted() const { return counted_; }
  /// The same, for a model with one loss term.
  double loss_sum(const ModelBatch& batch);
  void add_to(MemoryPlan& plan) const;

 private:
  /// A field of a batch in host memory: the field itself if the device can access it, else a copy.
  Tensor on_device(const TensorView& host);
  /// The share of this rank in a field, in device memory.
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
  ByTerm counted_;
  std::vector<std::byte> share_;  // this rank's share of an evaluation batch
};

}  // namespace choir
