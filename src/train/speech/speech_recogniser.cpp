#include "choir/train/speech/speech_recogniser.hpp"

#include "choir/ops/ctc.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {

Tensor SpeechRecogniser::on_device(const TensorView& host) {
  Device& device = instance_.device();
  if (device.host_visible()) return Tensor().view(host);
  Tensor there = instance_.arena().allocate(host.dtype, host.shape, "evaluation batch");
  device.copy_from_host(there.data, host.data, host.bytes());
  return there;
}

void SpeechRecogniser::run(const ModelBatch& batch) {
  frames_ = 0;
  const Tensor logits = instance_.forward(Mode::generate, batch);
  if (logits.empty()) return;
  Pass& pass = instance_.pass();
  const Stream& stream = pass.stream();
  const Sequence& sequence = pass.sequence();
  const std::int64_t symbols = instance_.options().model.vocab_size() + 1;
  const std::int64_t stages = batch.frame_lengths.shape[0] - 1;
  // The pass knows the lengths in memory that was given back with its copy of the batch.
  const Tensor frame_lengths = on_device(batch.frame_lengths.slice(stages, 1));
  const Tensor labels = on_device(batch.labels), label_lengths = on_device(batch.label_lengths);
  const Tensor best =
      instance_.arena().allocate(DType::i32, {sequence.rows()}, "best symbols of frames");
  ops::best_symbols(stream, logits, symbols, best);
  const Tensor losses = pass.allocate_statistic({sequence.batch}, "losses");
  const Tensor workspace =
      pass.scratch(ops::ctc_workspace(stream, sequence.batch, sequence.tokens,
                                      batch.labels.shape[1], symbols, logits.dtype),
                   "ctc");
  ops::ctc(stream, {.logits = logits,
                    .frame_lengths = static_cast<const std::int32_t*>(frame_lengths.data),
                    .labels = labels,
                    .label_lengths = static_cast<const std::int32_t*>(label_lengths.data),
                    .losses = losses,
                    .vocabulary = symbols,
                    .write_gradient = false,
                    .workspace = workspace});
  const Tensor total = instance_.arena().allocate(DType::f64, {1}, "sum of losses");
  ops::tree_sum(stream, losses, total);
  Device& device = instance_.device();
  if (device.kind() == DeviceKind::null) return;
  device.copy_to_host(&loss_sum_, total.data, sizeof loss_sum_);
  best_.resize(static_cast<std::size_t>(sequence.rows()));
  device.copy_to_host(best_.data(), best.data, best.bytes());
  const auto* lengths = batch.frame_lengths.slice(stages, 1).as<std::int32_t>();
  lengths_.assign(lengths, lengths + sequence.batch);
  frames_ = sequence.tokens;
}

std::span<const std::int32_t> SpeechRecogniser::best(std::int64_t row) const {
  CHOIR_CHECK(row >= 0 && row < std::ssize(lengths_), "row {} of {}", row, lengths_.size());
  return std::span(best_).subspan(
      static_cast<std::size_t>(row * frames_),
      static_cast<std::size_t>(lengths_[static_cast<std::size_t>(row)]));
}

}  // namespace choir
