#include "bench_batches.hpp"

#include "choir/train/engine/run_setup.hpp"
#include "choir/train/text/token_data.hpp"

namespace choir {
namespace {

class TokenBenchBatches final : public BenchBatches {
 public:
  TokenBenchBatches(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log)
      : data_(open_data(deck, batch.micro, mesh, log)),
        batch_(batch),
        tokens_(static_cast<double>(batch.global * deck.model.gpt.block_size)) {}

  std::int64_t vocab_size() const override { return data_->vocab_size(); }
  void start(const Sharding& sharding) override {
    data_->start_training(micro_batch_order(sharding, batch_.accum, 0));
  }
  ModelBatch micro_batch(std::int64_t, std::int64_t) override { return token_batch(data_->next()); }
  double targets(std::int64_t) const override { return tokens_; }
  double flops(std::int64_t, ModelInstance& instance) const override {
    return instance.gpt().flops_per_token() * tokens_;
  }
  StepWork work(const EngineOptions& options, ModelInstance& instance,
                double parts) const override {
    StepWork work = step_work(options.model.gpt(), options.precision, batch_.micro * batch_.accum,
                              instance.storage().slices_size());
    work.gemm_flops /= parts;
    work.attention_flops /= parts;
    return work;
  }

 private:
  std::unique_ptr<Dataset> data_;
  BatchSizes batch_;
  double tokens_;
};

class SpeechBenchBatches final : public BenchBatches {
 public:
  SpeechBenchBatches(const Deck& deck, const BatchSizes& batch,
                     const SyntheticSpeech::Options& speech)
      : speech_(speech_of(deck), speech), batch_(batch) {}

  std::int64_t vocab_size() const override { return 0; }
  std::vector<BatchShape> shapes() const override { return speech_.shapes(); }
  void start(const Sharding& sharding) override {
    first_ = sharding.first_micro_batch(batch_.accum);
    stride_ = sharding.micro_batch_stride();
  }
  // Ranks may have more places than a step has micro-batches.
  ModelBatch micro_batch(std::int64_t step, std::int64_t j) override {
    const std::int64_t place = first_ + j * stride_;
    if (place >= batch_.global) return speech_.padding();
    return speech_.micro_batch(step * batch_.global + place);
  }
  double targets(std::int64_t step) const override {
    return sum(step, [&](std::int64_t i) { return speech_.targets(i); });
  }
  double audio_seconds(std::int64_t step) const override {
    return sum(step, [&](std::int64_t i) { return speech_.seconds(i); });
  }
  double flops(std::int64_t step, ModelInstance& instance) const override {
    return sum(step, [&](std::int64_t i) { return speech_.flops(i, instance.model()); });
  }
  StepWork work(const EngineOptions& options, ModelInstance& instance,
                double parts) const override {
    double all = 0;
    for (int i = 0; i < SyntheticSpeech::kBatches; ++i)
      all += speech_.flops(i, instance.model()) / SyntheticSpeech::kBatches;
    StepWork work = update_work(options.precision, instance.storage().slices_size());
    work.gemm_flops = all * static_cast<double>(batch_.accum) / parts;
    return work;
  }

 private:
  template <class Of>
  double sum(std::int64_t step, const Of& of) const {
    double total = 0;
    for (std::int64_t i = step * batch_.global; i < (step + 1) * batch_.global; ++i) total += of(i);
    return total;
  }

  SyntheticSpeech speech_;
  BatchSizes batch_;
  std::int64_t first_ = 0, stride_ = 1;
};

}  // namespace

std::unique_ptr<BenchBatches> open_bench_batches(const Deck& deck, const BatchSizes& batch,
                                                 Mesh& mesh, Logger& log,
                                                 const SyntheticSpeech::Options& speech) {
  if (deck.model.speech()) return std::make_unique<SpeechBenchBatches>(deck, batch, speech);
  return std::make_unique<TokenBenchBatches>(deck, batch, mesh, log);
}

}  // namespace choir
