#include "src/lab/bench/bench_batches.hpp"

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

class SyntheticBenchBatches final : public BenchBatches {
 public:
  SyntheticBenchBatches(std::unique_ptr<SyntheticBatches> batches, const BatchSizes& batch,
                        bool fixed_shape)
      : batches_(std::move(batches)),
        of_rank_(batch.accum),
        of_step_(fixed_shape ? batch.micro_batches() : batch.global) {}

  std::int64_t vocab_size() const override { return 0; }
  std::vector<BatchShape> shapes() const override { return batches_->shapes(); }
  void start(const Sharding& sharding) override {
    first_ = sharding.first_micro_batch(of_rank_);
    stride_ = sharding.micro_batch_stride();
  }
  ModelBatch micro_batch(std::int64_t step, std::int64_t j) override {
    const std::int64_t place = first_ + j * stride_;
    return place < of_step_ ? batches_->micro_batch(step * of_step_ + place) : batches_->padding();
  }
  ByTerm targets(std::int64_t step) const override {
    return batches_->targets(step * of_step_, of_step_);
  }
  double audio_seconds(std::int64_t step) const override {
    return sum(step, [&](std::int64_t index) { return batches_->audio_seconds(index); });
  }
  double flops(std::int64_t step, ModelInstance& instance) const override {
    return sum(step,
               [&](std::int64_t index) { return instance.model().flops(batches_->shape(index)); });
  }
  StepWork work(const EngineOptions& options, ModelInstance& instance,
                double parts) const override {
    StepWork work = update_work(options.precision, instance.storage().trained_slices_size());
    work.gemm_flops =
        flops(0, instance) * static_cast<double>(of_rank_) / static_cast<double>(of_step_) / parts;
    return work;
  }

 private:
  template <class Of>
  double sum(std::int64_t step, const Of& of) const {
    double total = 0;
    for (std::int64_t i = step * of_step_; i < (step + 1) * of_step_; ++i) total += of(i);
    return total;
  }

  std::unique_ptr<SyntheticBatches> batches_;
  std::int64_t of_rank_, of_step_;  // micro-batches
  std::int64_t first_ = 0, stride_ = 1;
};

/// The training data of the deck.
class TrainingBenchBatches final : public BenchBatches {
 public:
  /// The deck may leave the vocabulary size to the data.
  TrainingBenchBatches(Deck deck, const BatchSizes& batch, Mesh& mesh, Logger& log)
      : data_(deck.family().open_data(deck, batch, mesh, log)),
        of_rank_(batch.accum),
        of_step_(batch.global) {
    if (std::int64_t& size = deck.family().vocab_size(deck); size == 0) size = vocab_size();
    model_ = deck.family().make(model_of(deck), parameters_, {});
    freeze_parameters(parameters_, engine_options(deck, batch).freezing, model_of(deck));
    model_->lowest_trained_unit();  // from here on the model knows which layers the backward pass
                                    // skips
  }

  std::int64_t vocab_size() const override { return data_->vocab_size(); }
  std::vector<BatchShape> shapes() const override { return data_->shapes(); }
  /// Reads some steps ahead for the mean FLOPs, then starts the data again.
  void start(const Sharding& sharding) override {
    data_->start_training(sharding, of_rank_, {});
    mean_flops_ = 0;
    for (std::int64_t step = 0; step < kLooked; ++step)
      mean_flops_ += content(step).flops / static_cast<double>(kLooked);
    data_->start_training(sharding, of_rank_, {});
  }
  ModelBatch micro_batch(std::int64_t, std::int64_t) override { return data_->next(); }
  ByTerm targets(std::int64_t step) const override { return content(step).targets; }
  double audio_seconds(std::int64_t step) const override { return content(step).audio_seconds; }
  double flops(std::int64_t step, ModelInstance&) const override { return content(step).flops; }
  StepWork work(const EngineOptions& options, ModelInstance& instance,
                double parts) const override {
    StepWork work = update_work(options.precision, instance.storage().trained_slices_size());
    work.gemm_flops =
        mean_flops_ * static_cast<double>(of_rank_) / static_cast<double>(of_step_) / parts;
    return work;
  }

 private:
  static constexpr std::int64_t kLooked = 32;
  StepContent content(std::int64_t step) const { return data_->content(step, *model_); }

  std::unique_ptr<TrainingData> data_;
  ParameterSet parameters_;
  std::unique_ptr<Model> model_;    // without memory: only for its FLOPs
  std::int64_t of_rank_, of_step_;  // micro-batches
  double mean_flops_ = 0;           // of a step
};

}  // namespace

std::unique_ptr<BenchBatches> ModelFamily::bench_batches(const Deck& deck, const BatchSizes& batch,
                                                         Mesh& mesh, Logger& log,
                                                         const BenchAudio&) const {
  if (!fixed_shape() && deck.data.format != DataFormat::synthetic) {
    Deck of_data = deck;
    if (!deck.given(vocab_size_key())) vocab_size(of_data) = 0;
    return std::make_unique<TrainingBenchBatches>(of_data, batch, mesh, log);
  }
  return std::make_unique<SyntheticBenchBatches>(
      synthetic_batches(model_of(deck), static_cast<std::uint64_t>(deck.run.seed), batch.micro),
      batch, fixed_shape());
}

}  // namespace choir
