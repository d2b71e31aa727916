// CodecFamily: its keys in the deck with their checks, the fields of its micro-batches, and its
// runs.

#include "src/models/codec/family.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/deck/deck.hpp"
#include "choir/run/training_data.hpp"
#include "src/deck/nearest_legal.hpp"
#include "src/models/codec/data.hpp"

namespace choir {
namespace {

constexpr double kWidestCodec = 1 << 20;

/// Returns "" for a value that `parse` accepts, else the problem with it.
template <class F>
std::string complaint(const F& parse) {
  try {
    parse();
  } catch (const DeckError& error) {
    return fmt::format("{}; legal: {}", error.what(), error.hint());
  }
  return {};
}

void add_sound_keys(KeyTable<CodecSettings>& table) {
  auto model = table.section("model", &CodecSettings::model);
  model.add("head", &CodecConfig::head, "",
            "Output of the decoder (codec models): rows of log-mel features, whose phases are "
            "estimated afterwards (Griffin-Lim), or spectra with phases, whose inverse transforms "
            "are sound.");
  model
      .add("resolutions", &CodecConfig::resolutions, "samples",
           "Transforms in which the loss compares generated with recorded sound (codec models with "
           "head = istft). Each overlaps the next by three quarters.")
      .checked("multiples of 4, \"256,512,1024\"", [](const KeyValue& value) {
        return complaint(
            [&] { parse_resolutions(std::get<std::string>(value), "model.resolutions"); });
      });
  auto loss = table.section<WaveformLoss>(
      "model.loss", [](CodecSettings& all) -> WaveformLoss& { return all.model.loss; });
  loss.add("mel", &WaveformLoss::mel, "",
           "Weight of the difference of logarithms of mel powers (codec models with head = istft).")
      .at_least(0);
  loss.add("stft", &WaveformLoss::stft, "",
           "Weight of the difference of logarithms of magnitudes (codec models with head = istft).")
      .at_least(0);
  loss.add("convergence", &WaveformLoss::convergence, "",
           "Weight of the relative difference of magnitudes (codec models with head = istft).")
      .at_least(0);
}

void add_codec_keys(KeyTable<CodecSettings>& table) {
  using Part = CodecConfig;
  auto model = table.section("model", &CodecSettings::model);
  model
      .add("encoder_width", &Part::encoder_width, "",
           "Width of the hidden layer of the encoder (codec models).")
      .at_least(1)
      .at_most(kWidestCodec);
  model
      .add("decoder_width", &Part::decoder_width, "",
           "Width of the hidden layers of the decoder (codec models).")
      .at_least(1)
      .at_most(kWidestCodec);
  model.add("codebooks", &Part::codebooks, "", "Codes per frame (codec models).")
      .at_least(1)
      .at_most(64);
  model
      .add("levels", &Part::levels, "",
           "Number of levels to which each number of a codebook is rounded (codec models). A "
           "codebook has as many codes as the product of its levels.")
      .checked("numbers from 2 on, \"8,5,5,5\"", [](const KeyValue& value) {
        return complaint(
            [&] { ops::FsqLevels::parse(std::get<std::string>(value), "model.levels"); });
      });
  model.add("rows", &Part::rows, "", "Rows of features per frame (codec models).")
      .at_least(1)
      .at_most(256);
  add_sound_keys(table);
  using Mel = ops::MelOptions;
  auto mel = table.section<Mel>("model", [](CodecSettings& all) -> Mel& { return all.model.mel; });
  mel.add("mels", &Mel::mels, "bins", "Mel bins of the features (speech models).")
      .at_least(1)
      .at_most(1024);
  mel.add("sample_rate", &Mel::sample_rate, "Hz", "Sample rate of the audio (speech models).")
      .at_least(1000)
      .at_most(192000);
  mel.add("window", &Mel::window, "samples", "Length of the symmetric Hann window (speech models).")
      .at_least(2)
      .at_most(65536);
  mel.add("hop", &Mel::hop, "samples", "Distance between feature frames (speech models).")
      .at_least(1)
      .at_most(65536);
  mel.add("fft", &Mel::fft, "samples", "Length of the Fourier transform (speech models).")
      .at_least(2)
      .at_most(65536);
  mel.add("mel_high", &Mel::high, "Hz",
          "Upper edge of the mel filters (speech models). 0: sample_rate / 2.")
      .at_least(0);
  mel.add("log_guard", &Mel::guard, "",
          "Constant added to powers before their logarithm (codec models).")
      .above(0);
  mel.add("feature_mean", &Mel::mean, "", "Mean subtracted from the logarithms (codec models).");
  mel.add("feature_deviation", &Mel::deviation, "",
          "Deviation by which the logarithms are divided (codec models).")
      .above(0);
}

}  // namespace

const KeySet& CodecFamily::keys() const {
  static const KeyTable<CodecSettings> kTable = [] {
    KeyTable<CodecSettings> table;
    add_codec_keys(table);
    table.include<SpeechSection>(speech_data_keys(), "data",
                                 [](CodecSettings& all) -> SpeechSection& { return all.data; });
    return table;
  }();
  return kTable;
}

// Invalid levels are refused where their key is read.
void CodecFamily::derive(Deck& deck) const {
  CodecConfig& model = deck.families.of<CodecSettings>().model;
  try {
    model.complete();
  } catch (const DeckError&) {
    return;
  }
}

ModelConfig CodecFamily::model(const Deck& deck) const {
  CodecConfig config = codec_settings(deck).model;
  config.complete();
  return config;
}

std::int64_t& CodecFamily::vocab_size(Deck& deck) const {
  return deck.families.of<CodecSettings>().model.vocab_size;
}

std::vector<KeyProblem> CodecFamily::check_tensor_size(const ModelConfig& config,
                                                       std::int64_t ranks) const {
  std::vector<KeyProblem> problems;
  const auto& c = config.as<CodecConfig>();
  const auto divides = [&](const char* key, std::int64_t width) {
    if (width % ranks == 0) return;
    problems.push_back(
        {{std::string("model.") + key, "parallel.tensor"},
         fmt::format("model.{} = {} cannot be divided among parallel.tensor = {} ranks; nearest "
                     "legal: {} = {}, or tensor = {}",
                     key, width, ranks, key, multiples_around(width, ranks),
                     divisors_around(width, ranks, kMostTensorRanks))});
  };
  divides("encoder_width", c.encoder_width);
  divides("decoder_width", c.decoder_width);
  return problems;
}

namespace {

/// Problems of keys of a head that is not used, and of transforms that do not fit into frames.
std::vector<KeyProblem> check_sound(const CodecConfig& c) {
  const CodecConfig usual;
  std::vector<KeyProblem> problems;
  if (!c.makes_sound()) {
    if (c.resolutions != usual.resolutions || c.loss != usual.loss)
      problems.push_back({{"model.resolutions", "model.loss", "model.head"},
                          "model.resolutions and model.loss compare sound, which model.head = "
                          "\"mel\" does not make; legal: model.head = \"istft\""});
    return problems;
  }
  for (const std::int64_t points : c.transforms())
    if (c.frame_samples() % (points / 4) != 0)
      problems.push_back(
          {{"model.resolutions", "model.hop", "model.rows"},
           fmt::format("model.resolutions: a quarter of {} points does not divide a frame of "
                       "model.rows {} x model.hop {} = {} samples",
                       points, c.rows, c.mel.hop, c.frame_samples())});
  if (c.loss.mel + c.loss.stft + c.loss.convergence == 0)
    problems.push_back({{"model.loss.mel", "model.loss.stft", "model.loss.convergence"},
                        "weights of 0 for all of model.loss leave nothing to learn"});
  return problems;
}

}  // namespace

std::vector<KeyProblem> CodecFamily::check(const Deck& deck) const {
  const CodecSettings& settings = codec_settings(deck);
  std::vector<KeyProblem> problems = check_tensor_size(model(deck), deck.parallel.tensor);
  if (deck.train.micro_batches == 0) problems.push_back(micro_batches_problem());
  if (deck.parallel.context > 1)
    problems.push_back({{"parallel.context", "model.type"},
                        fmt::format("parallel.context = {} shares tokens of a sequence, which "
                                    "model.type = \"codec\" does not have; legal: 1",
                                    deck.parallel.context)});
  for (KeyProblem& problem : check_features(settings.model.mel))
    problems.push_back(std::move(problem));
  for (KeyProblem& problem : check_sound(settings.model)) problems.push_back(std::move(problem));
  for (KeyProblem& problem : check_speech_data(deck, settings.data))
    problems.push_back(std::move(problem));
  return problems;
}

ModelBatch codec_fields(const BatchShape& shape) {
  ModelBatch batch;
  batch.samples = shape.samples;
  const auto add = [&](std::string_view name, DType type, const Shape& extents) {
    batch.add({.name = name, .view = {nullptr, type, extents}});
  };
  add("audio", DType::u16, {shape.samples, shape.audio_samples});  // 16 bits, signed
  add("audio_lengths", DType::i32, {shape.samples});
  add("frame_lengths", DType::i32, {2, shape.samples});
  return batch;
}

void set_frame_lengths(const CodecConfig& config, ModelBatch& batch) {
  const std::int64_t rows = batch["audio"].shape[0];
  auto* lengths = batch["frame_lengths"].as<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t frames = config.frames(batch["audio_lengths"].as<std::int32_t>()[row]);
    lengths[row] = static_cast<std::int32_t>(frames * config.rows);
    lengths[rows + row] = static_cast<std::int32_t>(frames);
  }
}

ModelBatch code_fields(const TensorView& codes, std::int64_t frames) {
  ModelBatch batch;
  batch.samples = 1;
  batch.tokens = frames;
  batch.add({.name = "codes", .view = codes});
  return batch;
}

const ModelFamily& codec_family() {
  static const CodecFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const CodecConfig&) {
  return codec_family();
}

std::vector<LossTerm> CodecFamily::loss_terms(const ModelConfig& config) const {
  const auto& c = config.as<CodecConfig>();
  if (!c.makes_sound()) return ModelFamily::loss_terms(config);
  return {{"mel_loss", c.loss.mel},
          {"stft_loss", c.loss.stft},
          {"convergence_loss", c.loss.convergence}};
}

UnitCosts CodecFamily::unit_costs(const ModelConfig& config) const {
  const auto& c = config.as<CodecConfig>();
  return Codec::unit_costs(c, {.samples = 1, .audio_samples = 10 * c.mel.sample_rate});
}

std::string CodecFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<CodecConfig>();
  return fmt::format(
      "frames of {} rows of {} mels ({:.0f} ms), {} -> {} -> {} codebooks of {} codes ({}) -> {} "
      "-> {}{}",
      c.rows, c.mel.mels,
      1000.0 * static_cast<double>(c.frame_samples()) / static_cast<double>(c.mel.sample_rate),
      c.features(), c.encoder_width, c.codebooks, c.fsq().codes(), c.levels, c.decoder_width,
      c.outputs(),
      c.makes_sound() ? fmt::format(" -> {} samples", c.frame_samples()) : std::string());
}

ModelBatch CodecFamily::fields(const ModelConfig&, const BatchShape& shape) const {
  return codec_fields(shape);
}

void CodecFamily::fill(const ModelConfig& config, const BatchShape& shape,
                       ModelBatch& batch) const {
  std::fill_n(batch["audio_lengths"].as<std::int32_t>(), shape.samples,
              static_cast<std::int32_t>(shape.audio_samples));
  set_frame_lengths(config.as<CodecConfig>(), batch);
}

void CodecFamily::clear(ModelBatch& batch) const {
  for (const char* lengths : {"audio_lengths", "frame_lengths"})
    std::fill_n(batch[lengths].as<std::int32_t>(), batch[lengths].count(), 0);
}

std::unique_ptr<TrainingData> CodecFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                     Mesh& mesh, Logger& log) const {
  if (deck.data.format != DataFormat::synthetic)
    return std::make_unique<CodecTrainingData>(deck, batch, mesh, log);
  const CodecConfig config = model(deck).as<CodecConfig>();
  return std::make_unique<SyntheticData>(
      std::make_unique<SyntheticSounds>(static_cast<std::uint64_t>(deck.run.seed), config), config,
      batch,
      fmt::format("noise, nothing is read; {} micro-batches a step", deck.train.micro_batches));
}

std::unique_ptr<EvaluationData> CodecFamily::open_evaluation(const Deck& deck,
                                                             const std::string& vocabulary,
                                                             Mesh& mesh, Logger& log) const {
  if (deck.data.format != DataFormat::synthetic)
    return std::make_unique<CodecEvaluationData>(deck, mesh);
  return ModelFamily::open_evaluation(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> CodecFamily::synthetic_batches(const ModelConfig& config,
                                                                 std::uint64_t seed,
                                                                 std::int64_t) const {
  return std::make_unique<SyntheticSounds>(seed, config.as<CodecConfig>());
}

void CodecFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  CodedFrames(instance).run(batch);
}

}  // namespace choir
