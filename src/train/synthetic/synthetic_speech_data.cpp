#include "synthetic_speech_data.hpp"

#include "choir/train/engine/run_setup.hpp"

namespace choir {

SyntheticSpeechData::SyntheticSpeechData(const Deck& deck)
    : vocabulary_(deck.model.gpt.vocab_size),
      micro_batches_(deck.train.micro_batches),
      sample_rate_(static_cast<double>(speech_of(deck).mel.sample_rate)),
      utterances_(static_cast<std::uint64_t>(deck.run.seed), speech_of(deck)) {}

std::string SyntheticSpeechData::to_string() const {
  return fmt::format(
      "data: random utterances with random transcripts of {} symbols, nothing is "
      "read; {} micro-batches a step",
      vocabulary_, micro_batches_);
}

void SyntheticSpeechData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                         const Position& from) {
  first_ = sharding.first_micro_batch(per_rank), stride_ = sharding.micro_batch_stride();
  per_rank_ = per_rank, step_ = from.step, call_ = 0;
}

ModelBatch SyntheticSpeechData::next() {
  const std::int64_t place = first_ + call_ * stride_, step = step_;
  if (++call_ == per_rank_) call_ = 0, ++step_;
  return place < micro_batches_ ? utterances_.micro_batch(step * micro_batches_ + place)
                                : utterances_.padding();
}

StepContent SyntheticSpeechData::content(std::int64_t step, const Model& model) {
  const std::int64_t first = step * micro_batches_;
  StepContent content{.targets = static_cast<double>(utterances_.targets(first, micro_batches_))};
  for (std::int64_t index = first; index < first + micro_batches_; ++index) {
    const BatchShape shape = utterances_.shape(index);
    content.samples += static_cast<double>(shape.samples);
    content.audio_seconds += static_cast<double>(utterances_.audio_samples(index)) / sample_rate_;
    content.flops += model.flops(shape);
  }
  return content;
}

}  // namespace choir
