#include "src/models/fastconformer/speech_training_data.hpp"

#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/models/fastconformer/speech_settings.hpp"

namespace choir {
namespace {

constexpr std::size_t kPairs = 3;

/// The warning before training if CTC has too few frames for some utterances; else "".
std::string ctc_warning_of(const SpeechSift& sift, const std::string& what,
                           std::int64_t subsampling) {
  const std::int64_t count = sift.count(LeftOut::ctc_impossible);
  if (count == 0) return {};
  const std::string all = sift.to_string();
  // The last line recommends a smaller subsampling, or larger units.
  return fmt::format(
      "{}: {} of {} utterances ({:.2f} %) have more labels than model.subsampling = "
      "{} leaves frames; {}",
      what, count, sift.total(),
      100 * static_cast<double>(count) / static_cast<double>(sift.total()), subsampling,
      all.substr(all.rfind('\n') + 1));
}

}  // namespace

SpeechTrainingData::SpeechTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                       Logger& log)
    : batch_(batch), mesh_(mesh), log_(log), data_(open_speech(deck, mesh, true)) {
  drawn_.resize(data_.set->sources().size());
  std::vector<std::string> lines{
      ctc_warning_of(data_.set->sift(), "training", speech_of(deck).subsampling)};
  for (int set = 0; set < data_.set->eval_sets(); ++set)
    lines.push_back(ctc_warning_of(data_.set->eval_sift(set),
                                   fmt::format("validation '{}'", data_.set->eval_name(set)),
                                   speech_of(deck).subsampling));
  for (const std::string& line : lines)
    if (!line.empty() && mesh.rank() == 0) log.warn("data: {}", line);
  if (!has_validation()) warn_without_validation(mesh, log);
}

std::string SpeechTrainingData::to_string() const {
  return fmt::format("{}, units of kind {}", data_.set->to_string(),
                     name_of(data_.vocabulary.kind()));
}

// Identified by counts and vocabulary: hours of audio are too much to read for it.
std::string SpeechTrainingData::contents() const {
  return fmt::format("units {:016x}", data_.set->tokenizer_hash()) +
         counts_of(*data_.set, "utterances");
}

void SpeechTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                        const Position& from) {
  steps_.begin(data_.set->sampler(), from, batch_.global, "utterances", mesh_, log_);
  data_.set->start_training(steps_.order(sharding, per_rank));
}

StepContent SpeechTrainingData::content(std::int64_t step, const Model& model) {
  return steps_.content(step, [&](const SpeechStep& planned, StepContent& to) {
    std::int64_t samples = 0;
    for (const SpeechRow& row : planned.rows) {
      samples += row.item.samples;
      ++drawn_[static_cast<std::size_t>(row.item.leaf)];
      to.flops +=
          model.flops({.samples = 1, .audio_samples = row.item.samples, .labels = row.item.labels});
    }
    to.audio_seconds = static_cast<double>(samples) / static_cast<double>(data_.set->sample_rate());
  });
}

std::vector<std::string> SpeechTrainingData::take_warnings() {
  return gathered_warnings(*data_.set, mesh_);
}

std::vector<Validation> SpeechTrainingData::validate(ModelInstance& instance,
                                                     ProgressLine* progress) {
  std::vector<SetScores> sets = score_sets(instance, data_, kPairs, progress);
  if (mesh_.rank() == 0) {
    for (const std::string& line : lines_of(sets)) log_.info("validation {}", line);
    if (const std::string parts = drawn(); !parts.empty()) log_.info("drawn so far: {}", parts);
  }
  pairs_ = std::move(sets.front().pairs);
  return validations_of(sets);
}

// The pairs of the last validation.
std::string SpeechTrainingData::sample(ModelInstance&) {
  return choir::to_string(pairs_);
}

namespace {

SpeechData open_with_vocabulary(const Deck& deck, const std::string& json, Mesh& mesh) {
  if (json.empty()) return open_speech(deck, mesh, false);
  Vocabulary vocabulary = Vocabulary::from_json(json, "the checkpoint");
  SpeechData data = open_speech(deck, mesh, false, vocabulary.hash());
  data.vocabulary = std::move(vocabulary);
  return data;
}

}  // namespace

SpeechEvaluationData::SpeechEvaluationData(const Deck& deck, const std::string& vocabulary,
                                           Mesh& mesh)
    : data_(open_with_vocabulary(deck, vocabulary, mesh)) {}

EvaluationData::Result SpeechEvaluationData::evaluate(ModelInstance& instance,
                                                      ProgressLine* progress) {
  const std::vector<SetScores> sets = score_sets(instance, data_, kPairs, progress);
  Result result;
  const std::string pairs = choir::to_string(sets.front().pairs);
  if (!pairs.empty()) result.lines.push_back(pairs + "\n");
  for (std::string& line : lines_of(sets)) result.lines.push_back(std::move(line));
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
