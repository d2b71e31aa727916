#include "choir/lab/bench/bench_batches.hpp"

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "choir/models/synthetic_batches.hpp"
#include "choir/train/step/run_setup.hpp"

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
    StepWork work = update_work(options.precision, instance.storage().slices_size());
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

}  // namespace

std::unique_ptr<BenchBatches> ModelFamily::bench_batches(const Deck& deck, const BatchSizes& batch,
                                                         Mesh&, Logger&, const BenchAudio&) const {
  return std::make_unique<SyntheticBenchBatches>(
      synthetic_batches(model_of(deck), static_cast<std::uint64_t>(deck.run.seed), batch.micro),
      batch, fixed_shape());
}

}  // namespace choir
