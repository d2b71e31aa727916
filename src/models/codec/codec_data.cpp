#include "src/models/codec/codec_data.hpp"

#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"

namespace choir {

CodecTrainingData::CodecTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                     Logger& log)
    : config_(codec_settings(deck).model),
      batch_(batch),
      mesh_(mesh),
      log_(log),
      terms_(deck.family().loss_terms(config_).size()),
      data_(open_recordings(deck, codec_request(deck), mesh, true)) {
  drawn_.resize(data_->sources().size());
  if (!has_validation()) warn_without_validation(mesh, log);
}

// Identified by counts: hours of audio are too much to read for it.
std::string CodecTrainingData::contents() const {
  return std::string("speech") + counts_of(*data_, "utterances");
}

void CodecTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                       const Position& from) {
  steps_.begin(data_->sampler(), from, batch_.global, "utterances", mesh_, log_);
  data_->start_training(steps_.order(sharding, per_rank));
}

// The divisor of the sums of losses: frames of all ranks, without padding.
StepContent CodecTrainingData::content(std::int64_t step, const Model& model) {
  return steps_.content(step, [&](const SpeechStep& planned, StepContent& to) {
    std::int64_t samples = 0, frames = 0;
    for (const SpeechRow& row : planned.rows) {
      samples += row.item.samples;
      frames += config_.frames(row.item.samples);
      ++drawn_[static_cast<std::size_t>(row.item.leaf)];
      to.flops += model.flops({.samples = 1, .audio_samples = row.item.samples});
    }
    to.targets = ByTerm(terms_, static_cast<double>(frames));
    to.audio_seconds = static_cast<double>(samples) / static_cast<double>(data_->sample_rate());
  });
}

std::vector<std::string> CodecTrainingData::take_warnings() {
  return gathered_warnings(*data_, mesh_);
}

std::vector<Validation> CodecTrainingData::validate(ModelInstance& instance,
                                                    ProgressLine* progress) {
  const std::vector<CodecSetScores> sets = score_codec(instance, *data_, progress);
  if (mesh_.rank() == 0)
    for (const std::string& line : lines_of(sets)) log_.info("validation {}", line);
  return validations_of(sets);
}

EvaluationData::Result CodecEvaluationData::evaluate(ModelInstance& instance,
                                                     ProgressLine* progress) {
  const std::vector<CodecSetScores> sets = score_codec(instance, *data_, progress);
  Result result;
  result.lines = lines_of(sets);
  for (const Validation& v : validations_of(sets)) {
    const std::string behind = v.name.empty() ? "" : "/" + v.name;
    result.metrics +=
        fmt::format("{}val_loss{}={:.6f}", result.metrics.empty() ? "" : " ", behind, v.loss);
    for (const auto& [name, value] : v.metrics)
      result.metrics += fmt::format(" val_{}{}={:.6f}", name, behind, value);
  }
  return result;
}

}  // namespace choir
