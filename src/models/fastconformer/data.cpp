#include "src/models/fastconformer/data.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

namespace choir {
namespace {

/// Rows of a micro-batch, and frames of the encoder in each.
struct Kind {
  std::int64_t rows, frames;
};
constexpr std::array<Kind, 3> kKinds{{{3, 6}, {2, 9}, {1, 14}}};

BatchShape shape_of(const FastConformerConfig& config, const Kind& kind) {
  return {.samples = kind.rows,
          .audio_samples = kind.frames * config.mel.hop * config.subsampling,
          .labels = kind.frames / 2};
}

}  // namespace

SyntheticUtterances::SyntheticUtterances(std::uint64_t seed, const FastConformerConfig& config)
    : shape_key_(philox_key(seed, "verify utterances")),
      audio_key_(philox_key(seed, "verify audio")),
      label_key_(philox_key(seed, "verify transcripts")),
      config_(config) {
  for (const BatchShape& shape : shapes())
    batches_.push_back(std::make_unique<HostBatch>(config, shape));
  padding_ = std::make_unique<HostBatch>(
      config, BatchShape{.samples = 1, .audio_samples = config.mel.hop, .labels = 1});
  padding_->clear();
}

std::vector<BatchShape> SyntheticUtterances::shapes() const {
  std::vector<BatchShape> list;
  for (const Kind& kind : kKinds) list.push_back(shape_of(config_, kind));
  return list;
}

BatchShape SyntheticUtterances::shape(std::int64_t index) const {
  return shape_of(config_, kKinds[kind(index)]);
}

double SyntheticUtterances::audio_seconds(std::int64_t index) const {
  std::int64_t sum = 0;
  for (std::int64_t at = 0; at < kKinds[kind(index)].rows; ++at) sum += row(index, at).samples;
  return static_cast<double>(sum) / static_cast<double>(config_.mel.sample_rate);
}

std::size_t SyntheticUtterances::kind(std::int64_t index) const {
  return philox_at(shape_key_, static_cast<std::uint64_t>(index), kMostRows)[0] % kKinds.size();
}

// With half as many labels as frames CTC has a path, whatever labels repeat.
SyntheticUtterances::Row SyntheticUtterances::row(std::int64_t index, std::int64_t row) const {
  const BatchShape shape = this->shape(index);
  const PhiloxBlock word =
      philox_at(shape_key_, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(row));
  const auto below = [](std::uint32_t w, std::int64_t n) {
    return static_cast<std::int64_t>(w % static_cast<std::uint64_t>(n));
  };
  Row result;
  // The first row has the full length of the shape.
  result.samples = row == 0 ? shape.audio_samples
                            : shape.audio_samples / 3 + below(word[0], shape.audio_samples / 2);
  const std::int64_t most = std::min(shape.labels, config_.frames(result.samples) / 2);
  result.labels = below(word[1], most + 1);
  return result;
}

void SyntheticUtterances::fill(ModelBatch& batch, std::int64_t index, std::int64_t at) const {
  const Row utterance = row(index, at);
  const std::int64_t id = index * kMostRows + at;
  const std::int64_t rows = batch.samples, samples = batch["audio"].shape[1];
  auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + at * samples;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double loud = 400.0 * static_cast<double>(1 + id % 7);
    const double noise =
        normal_at(audio_key_, static_cast<std::uint64_t>(id * (std::int64_t{1} << 32) + i));
    audio[i] = i < utterance.samples
                   ? static_cast<std::int16_t>(std::clamp(loud * noise, -32768.0, 32767.0))
                   : std::int16_t{0};
  }
  const auto set = [](const TensorView& view, std::int64_t i, std::int64_t value) {
    view.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
  };
  set(batch["audio_lengths"], at, utterance.samples);
  set(batch["label_lengths"], at, utterance.labels);
  for (int stage = 0; stage <= config_.stages(); ++stage)
    set(batch["frame_lengths"], stage * rows + at, config_.lengths_after(stage, utterance.samples));
  batch["sample_ids"].as<std::int64_t>()[at] = id;
  const std::int64_t labels = batch["labels"].shape[1];
  for (std::int64_t u = 0; u < labels; ++u) {
    const PhiloxBlock word =
        philox_at(label_key_, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(u));
    set(batch["labels"], at * labels + u,
        u < utterance.labels
            ? static_cast<std::int64_t>(word[0] % static_cast<std::uint64_t>(config_.vocab_size))
            : -1);
  }
}

ModelBatch SyntheticUtterances::micro_batch(std::int64_t index) {
  ModelBatch& batch = batches_[kind(index)]->batch;
  for (std::int64_t at = 0; at < batch.samples; ++at) fill(batch, index, at);
  return batch;
}

ModelBatch SyntheticUtterances::padding() {
  return padding_->batch;
}

ByTerm SyntheticUtterances::targets(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t index = first; index < first + count; ++index)
    for (std::int64_t at = 0; at < kKinds[kind(index)].rows; ++at) sum += row(index, at).labels;
  return static_cast<double>(sum);
}

namespace {

std::int32_t& at(const TensorView& view, std::int64_t i) {
  return view.as<std::int32_t>()[i];
}

}  // namespace

SyntheticSpeech::SyntheticSpeech(const FastConformerConfig& config, const BenchAudio& options)
    : config_(config), options_(options) {
  if (!(options.shortest > 0 && options.shortest <= options.longest &&
        options.longest <= options.batch_duration))
    throw DeckError(fmt::format("utterances of {} to {} s in micro-batches of {} s",
                                options.shortest, options.longest, options.batch_duration),
                    "the shortest is above 0, the longest fits a micro-batch");
  for (int i = 0; i < kBatches; ++i) made_.push_back(make(i));
  padding_ = std::make_unique<HostBatch>(
      config, BatchShape{.samples = 1, .audio_samples = config.mel.hop, .labels = 1});
  padding_->clear();
}

// Utterances of the i-th of equal ranges of duration, the first one at its upper edge.
SyntheticSpeech::Made SyntheticSpeech::make(int number) const {
  const double range = (options_.longest - options_.shortest) / kBatches;
  const double most = options_.shortest + range * (number + 1);
  const std::int64_t frame = config_.mel.hop * config_.subsampling;
  const auto samples_of = [&](double seconds) {
    return static_cast<std::int64_t>(seconds * config_.mel.sample_rate);
  };
  const auto rows = static_cast<std::int64_t>(options_.batch_duration / most);
  Made made;
  made.shape = {.samples = rows,
                .audio_samples = (samples_of(most) + frame - 1) / frame * frame,
                .labels = std::max<std::int64_t>(
                    1, static_cast<std::int64_t>(options_.labels_per_second * most))};
  made.memory = std::make_unique<HostBatch>(config_, made.shape);
  made.memory->clear();
  const PhiloxKey key = philox_key(options_.seed, "synthetic lengths");
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t id = number * (std::int64_t{1} << 20) + row;
    const double part = 0x1p-32 * philox_at(key, static_cast<std::uint64_t>(id))[0];
    fill(made, row, samples_of(row == 0 ? most : most - range * part), id);
  }
  return made;
}

void SyntheticSpeech::fill(Made& made, std::int64_t row, std::int64_t samples,
                           std::int64_t id) const {
  const ModelBatch& batch = made.memory->batch;
  auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + row * made.shape.audio_samples;
  const PhiloxKey noise = philox_key(options_.seed, "synthetic audio");
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto word =
        philox_at(noise, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(i / 4));
    audio[i] = static_cast<std::int16_t>(word[static_cast<std::size_t>(i % 4)] >> 20) - 2048;
  }
  // With half as many labels as frames CTC has a path, whatever labels repeat.
  const double seconds = static_cast<double>(samples) / config_.mel.sample_rate;
  const auto spoken = static_cast<std::int64_t>(options_.labels_per_second * seconds);
  const std::int64_t labels = std::min(spoken, config_.frames(samples) / 2);
  at(batch["audio_lengths"], row) = static_cast<std::int32_t>(samples);
  at(batch["label_lengths"], row) = static_cast<std::int32_t>(labels);
  batch["sample_ids"].as<std::int64_t>()[row] = id;
  for (int stage = 0; stage <= config_.stages(); ++stage)
    at(batch["frame_lengths"], stage * made.shape.samples + row) =
        static_cast<std::int32_t>(config_.lengths_after(stage, samples));
  const PhiloxKey units = philox_key(options_.seed, "synthetic transcripts");
  for (std::int64_t u = 0; u < labels; ++u) {
    const auto word =
        philox_at(units, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(u));
    at(batch["labels"], row * made.shape.labels + u) =
        static_cast<std::int32_t>(word[0] % static_cast<std::uint64_t>(config_.vocab_size));
  }
  made.seconds += seconds;
  made.targets += static_cast<double>(labels);
}

std::vector<BatchShape> SyntheticSpeech::shapes() const {
  std::vector<BatchShape> list;
  for (const Made& made : made_) list.push_back(made.shape);
  return list;
}

double SyntheticSpeech::flops(std::int64_t index, const Model& model) const {
  const Made& made = batch(index);
  double sum = 0;
  for (std::int64_t row = 0; row < made.shape.samples; ++row)
    sum += model.flops({.samples = 1,
                        .audio_samples = at(made.memory->batch["audio_lengths"], row),
                        .labels = at(made.memory->batch["label_lengths"], row)});
  return sum;
}

namespace {

/// The warning before training if CTC has too few frames for some utterances; else "".
std::string ctc_warning_of(const SpeechSift& sift, const std::string& what) {
  const std::int64_t count = sift.count(LeftOut::ctc_impossible);
  if (count == 0) return {};
  return fmt::format("{}: {} of {} utterances ({:.2f} %) have more labels than frames; {}", what,
                     count, sift.total(),
                     100 * static_cast<double>(count) / static_cast<double>(sift.total()),
                     sift.ctc_remedy());
}

/// The lines about utterances that an evaluation leaves out, and about those that have fewer frames
/// than labels. Texts that the vocabulary cannot write have a warning of their own.
std::vector<std::string> remarks_on(const SpeechSift& sift) {
  std::vector<std::string> lines;
  for (const LeftOut reason : kLeftOutReasons)
    if (reason != LeftOut::bad_text) lines.push_back(sift.line_of(reason));
  lines.push_back(sift.ctc_remedy());
  std::erase_if(lines, [](const std::string& line) { return line.empty(); });
  return lines;
}

/// Collective. Warns of texts of validation sets that the vocabulary cannot write.
void warn_of_unwritable_texts(const SpeechData& data, Mesh& mesh, Logger& log) {
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    for (int set = 0; set < data.set->eval_sets(); ++set)
      if (const std::string line = unwritable_texts_of(*data.set, set, data.vocabulary);
          !line.empty())
        log.warn("data: {}", line);
  });
}

}  // namespace

SpeechTrainingData::SpeechTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                       Logger& log)
    : batch_(batch), mesh_(mesh), log_(log), data_(open_speech(deck, mesh, true)) {
  drawn_.resize(data_.set->sources().size());
  std::vector<std::string> lines{ctc_warning_of(data_.set->sift(), "training")};
  for (int set = 0; set < data_.set->eval_sets(); ++set)
    lines.push_back(ctc_warning_of(data_.set->eval_sift(set),
                                   fmt::format("validation '{}'", data_.set->eval_name(set))));
  for (const std::string& line : lines)
    if (!line.empty() && mesh.rank() == 0) log.warn("data: {}", line);
  warn_of_unwritable_texts(data_, mesh, log);
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

void SpeechTrainingData::add_resident(MemoryPlan& plan, const Device* device) const {
  const std::size_t bytes = data_.set->resident_bytes(device == nullptr || device->host_visible());
  if (bytes > 0) plan.add(kResident, bytes);
}

ModelBatch SpeechTrainingData::next() {
  const SpeechBatch& speech = data_.set->next();
  ModelBatch batch = speech_batch(speech);
  count_dropped(
      speech, [](const SpeechItem& item) { return ByTerm(item.labels); }, batch);
  return batch;
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

SpeechEvaluationData::SpeechEvaluationData(const Deck& deck, const std::string& vocabulary,
                                           Mesh& mesh, Logger& log)
    : data_(open_speech(deck, mesh, false, vocabulary)) {
  for (int set = 0; set < data_.set->eval_sets(); ++set)
    for (const std::string& line : remarks_on(data_.set->eval_sift(set)))
      log.info("data: validation '{}': {}", data_.set->eval_name(set), line);
  warn_of_unwritable_texts(data_, mesh, log);
}

}  // namespace choir
