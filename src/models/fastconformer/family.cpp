// FastConformerFamily: its keys in the deck with their checks, the fields of its micro-batches, and
// its runs.

#include "src/models/fastconformer/family.hpp"
#include "src/core/quantities.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/deck/deck.hpp"
#include "choir/run/training_data.hpp"
#include "kernels/features/features.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/deck/name_patterns.hpp"
#include "src/deck/nearest_legal.hpp"
#include "src/models/fastconformer/data.hpp"
#include "src/models/fastconformer/evaluation.hpp"

namespace choir {
namespace {

// Limits far above any model: a typing error is refused at once, and products of sizes do not
// overflow.
constexpr double kMostLayers = 10'000;
constexpr double kMostWidth = 1 << 20;
constexpr double kMostSymbols = 1 << 30;
constexpr double kMostFrames = 1 << 20;

using EncoderTable = KeyTable<FastConformerConfig>;

void add_encoder_keys(EncoderTable& table) {
  using Part = FastConformerConfig;
  auto model = table.top();
  model.add("n_layer", &Part::n_layer, "", "Number of blocks.").at_least(1).at_most(kMostLayers);
  model.add("n_head", &Part::n_head, "", "Number of attention heads. Must divide n_embd.")
      .at_least(1)
      .at_most(kMostWidth);
  model.add("n_embd", &Part::n_embd, "", "Width of the residual stream.")
      .at_least(1)
      .at_most(kMostWidth);
  model.add("ffn_width", &Part::ffn_width, "", "Width of the feed-forward layers. 0: 4 n_embd.")
      .at_least(0)
      .at_most(16 * kMostWidth);
  model
      .add("dropout", &Part::dropout, "probability",
           "Dropout of every residual branch, and after the subsampling.")
      .at_least(0)
      .below(1);
  model.add("norm_eps", &Part::norm_eps, "", "Constant added to the variance.").above(0);
  model
      .add("conv_kernel", &Part::conv_kernel, "taps",
           "Width of the depthwise convolutions (speech models). Must be odd.")
      .at_least(1)
      .at_most(1023);
  model
      .add("subsampling", &Part::subsampling, "",
           "Frames of features per frame of the encoder (speech models): 2, 4 or 8.")
      .at_least(2)
      .at_most(8);
  model
      .add("subsampling_channels", &Part::subsampling_channels, "",
           "Channels of the subsampling convolutions (speech models).")
      .at_least(1)
      .at_most(65536);
  model.add("conv_norm", &Part::conv_norm, "",
            "Norm inside the convolution module (speech models). batchnorm uses the statistics of "
            "one "
            "global micro-batch.");
  model.add("xscaling", &Part::xscaling, "",
            "Multiply the input of the blocks by sqrt(n_embd) (speech models).");
  model.add("causal", &Part::causal, "",
            "Make subsampling and convolutions causal (speech models).");
  model.add(
      "context_style", &Part::context_style, "",
      "Attention context (speech models). regular: frames attend to left_context ... "
      "right_context around them. chunked: to their own chunk of right_context + 1 frames and "
      "to "
      "whole chunks before it.");
  model
      .add("left_context", &Part::left_context, "frames",
           "Encoder frames before a frame that it attends to (speech models). -1: all.")
      .at_least(-1)
      .at_most(kMostFrames);
  model
      .add("right_context", &Part::right_context, "frames",
           "Encoder frames after a frame that it attends to (speech models). -1: all.")
      .at_least(-1)
      .at_most(kMostFrames);
  model
      .add("attention_in_one_kernel", &Part::attention_in_one_kernel, "",
           "Compute all gradients of attention over at most 256 frames, with heads of at most 64, "
           "in "
           "one kernel on a GPU in 16 bits (speech models). Nobody has measured yet if that is "
           "faster than cuDNN's kernels.")
      .when_resumed(OnResume::free);
  model
      .add(
          "stochastic_depth", &Part::stochastic_depth, "probability",
          "Probability of skipping the last block (speech models); it rises linearly from 0 at the "
          "first.")
      .at_least(0)
      .below(1);
  model.add("normalise", &Part::normalise, "",
            "Normalise features to mean 0 and deviation 1 per utterance and bin (speech models).");
}

void add_feature_keys(EncoderTable& table) {
  using Mel = ops::MelOptions;
  auto mel = table.section("", &FastConformerConfig::mel);
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
  mel.add("preemphasis", &Mel::preemphasis, "",
          "Pre-emphasis p in y[n] = x[n] - p x[n - 1] (speech models).")
      .at_least(0)
      .below(1);
  mel.add("dither", &Mel::dither, "",
          "Amplitude of noise added to audio in [-1, 1) while training (speech models).")
      .at_least(0);

  using Augment = ops::SpecAugment;
  auto augment = table.section("", &FastConformerConfig::augment);
  augment
      .add("freq_masks", &Augment::frequency_masks, "",
           "Number of frequency masks of SpecAugment (speech models).")
      .at_least(0)
      .at_most(1000);
  augment
      .add("freq_width", &Augment::frequency_width, "bins",
           "Largest width of a frequency mask (speech models).")
      .at_least(0)
      .at_most(1024)
      .not_with("freq_masks", {"0"});
  augment
      .add("time_masks", &Augment::time_masks, "",
           "Number of time masks of SpecAugment (speech models).")
      .at_least(0)
      .at_most(1000);
  augment
      .add("time_width", &Augment::time_width, "frames",
           "Largest width of a time mask (speech models); below 1, a fraction of the utterance.")
      .at_least(0)
      .not_with("time_masks", {"0"});
}

class EncoderChecks {
 public:
  EncoderChecks(const Deck& deck, const FastConformerConfig& config, const std::string& section)
      : deck_(deck), speech_(config), section_(section) {}

  void shape() {
    const FastConformerConfig& c = speech_;
    if (c.n_embd % c.n_head != 0)
      add({"model.n_embd", "model.n_head"},
          fmt::format("model.n_embd = {} is not a multiple of model.n_head = {}; nearest legal: "
                      "n_embd = {}, or n_head = {}",
                      c.n_embd, c.n_head, multiples_around(c.n_embd, c.n_head),
                      divisors_around(c.n_embd, c.n_head)));
    if (c.conv_kernel % 2 == 0)
      add({"model.conv_kernel"},
          fmt::format("model.conv_kernel = {} has no middle; nearest legal: {} or {}",
                      c.conv_kernel, c.conv_kernel - 1, c.conv_kernel + 1));
    if (c.subsampling != 2 && c.subsampling != 4 && c.subsampling != 8)
      add({"model.subsampling"},
          fmt::format("model.subsampling = {}; legal: 2, 4 or 8", c.subsampling));
  }

  void features() {
    for (KeyProblem& problem : check_features(speech_.mel)) problems_.push_back(std::move(problem));
  }

  void augmentation() {
    const ops::SpecAugment& augment = speech_.augment;
    const std::int64_t mels = speech_.mel.mels, width = augment.frequency_width;
    if (augment.frequency_masks > 0 && width > mels)
      add({"model.freq_width", "model.mels"},
          fmt::format("model.freq_width = {}{} is more than model.mels = {} has; nearest legal: "
                      "{}, or model.freq_masks = 0",
                      width, deck_.given(section_ + ".freq_width") ? "" : " (the default)", mels,
                      mels));
    const std::int64_t masks = augment.time_masks + augment.frequency_masks;
    if (masks > kMostMasks)
      add({"model.time_masks", "model.freq_masks"},
          fmt::format("model.time_masks = {} and model.freq_masks = {} are {} masks; legal: at "
                      "most {} together",
                      augment.time_masks, augment.frequency_masks, masks, kMostMasks));
  }

  void context() {
    const FastConformerConfig& c = speech_;
    if (c.context_style != ContextStyle::chunked) return;
    const std::int64_t chunk = c.right_context + 1;
    if (c.right_context < 0)
      add({"model.right_context", "model.context_style"},
          "model.context_style = \"chunked\" has chunks of model.right_context + 1 frames, but "
          "right_context = -1; legal: 0 or more");
    else if (c.left_context >= 0 && c.left_context % chunk != 0)
      add({"model.left_context", "model.right_context"},
          fmt::format("model.left_context = {} is not a number of whole chunks of {} frames; "
                      "nearest legal: {}",
                      c.left_context, chunk, multiples_around(c.left_context, chunk)));
  }

  void tensor(std::int64_t ranks) {
    const auto divides = [&](const char* key, std::int64_t value) {
      if (value % ranks == 0) return;
      add({std::string("model.") + key, "parallel.tensor"},
          fmt::format("model.{} = {} cannot be divided among parallel.tensor = {} ranks; nearest "
                      "legal: {} = {}, or tensor = {}",
                      key, value, ranks, key, multiples_around(value, ranks),
                      divisors_around(value, ranks, kMostTensorRanks)));
    };
    divides("n_head", speech_.n_head);
    divides("n_embd", speech_.n_embd);
    divides("ffn_width", speech_.hidden());
  }

  std::vector<KeyProblem> take() { return std::move(problems_); }

 private:
  void add(std::vector<std::string> keys, std::string text) {
    problems_.push_back({std::move(keys), std::move(text)});
  }
  const Deck& deck_;
  const FastConformerConfig& speech_;
  const std::string& section_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

std::vector<KeyProblem> check_features(const ops::MelOptions& mel) {
  if (mel.fft < mel.window)
    return {{{"model.fft", "model.window"},
             fmt::format("model.fft = {} is shorter than model.window = {}; nearest legal: {}",
                         mel.fft, mel.window, mel.window)}};
  const double most = static_cast<double>(mel.sample_rate) / 2;
  if (mel.high > most)
    return {
        {{"model.mel_high", "model.sample_rate"},
         fmt::format("model.mel_high = {} is above half of model.sample_rate; nearest legal: {}",
                     mel.high, most)}};
  const auto fault = ops::mel_fault(mel);
  if (!fault) return {};
  return {{{std::string("model.") + fault->option},
           fmt::format("model.{} = {}; legal: {}", fault->option, fault->value, fault->legal)}};
}

const KeyTable<FastConformerConfig>& encoder_keys() {
  static const EncoderTable kTable = [] {
    EncoderTable table;
    add_encoder_keys(table);
    add_feature_keys(table);
    return table;
  }();
  return kTable;
}

std::vector<KeyProblem> check_encoder(const Deck& deck, const FastConformerConfig& config,
                                      const std::string& section, std::int64_t ranks) {
  EncoderChecks checks(deck, config, section);
  checks.shape();
  checks.features();
  checks.augmentation();
  checks.context();
  checks.tensor(ranks);
  return checks.take();
}

KeyProblem micro_batches_problem() {
  return {
      {"train.micro_batches"},
      "train.micro_batches is not given: set the number of micro-batches of a step on all ranks "
      "together"};
}

const KeySet& FastConformerFamily::keys() const {
  using Settings = FastConformerSettings;
  static const KeyTable<Settings> kTable = [] {
    KeyTable<Settings> table;
    table.include<FastConformerConfig>(
        encoder_keys(), "model", [](Settings& all) -> FastConformerConfig& { return all.model; });
    table.section("model", &Settings::model)
        .add("vocab_size", &FastConformerConfig::vocab_size, "symbols",
             "Size of the vocabulary, without the blank. 0: that of the data.")
        .at_least(0)
        .at_most(kMostSymbols);
    table.include<SpeechSection>(speech_data_keys(), "data",
                                 [](Settings& all) -> SpeechSection& { return all.data; });
    return table;
  }();
  return kTable;
}

void derive_encoder(Deck& deck, FastConformerConfig& config, const std::string& section) {
  if (config.ffn_width > 0) return;
  config.ffn_width = config.hidden();
  deck.mark_derived(section + ".ffn_width");
}

void FastConformerFamily::derive(Deck& deck) const {
  derive_encoder(deck, deck.families.of<FastConformerSettings>().model, "model");
}

ModelConfig FastConformerFamily::model(const Deck& deck) const {
  return speech_of(deck);
}

std::int64_t& FastConformerFamily::vocab_size(Deck& deck) const {
  return deck.families.of<FastConformerSettings>().model.vocab_size;
}

std::vector<KeyProblem> FastConformerFamily::check(const Deck& deck) const {
  std::vector<KeyProblem> problems =
      check_encoder(deck, speech_of(deck), "model", deck.parallel.tensor);
  if (deck.train.micro_batches == 0) problems.push_back(micro_batches_problem());
  if (deck.parallel.context > 1)
    problems.push_back({{"parallel.context", "model.type"},
                        fmt::format("parallel.context = {} shares tokens of a sequence, which "
                                    "model.type = \"fastconformer\" does not have; legal: 1",
                                    deck.parallel.context)});
  for (KeyProblem& problem : check_speech_data(deck, speech_settings(deck).data))
    problems.push_back(std::move(problem));
  return problems;
}

namespace {

void fill_integers(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

ModelBatch speech_fields(int stages, const BatchShape& shape) {
  const std::int64_t rows = shape.samples;
  ModelBatch batch;
  batch.samples = rows;
  const auto add = [&](std::string_view name, DType type, const Shape& extents) {
    batch.add({.name = name, .view = {nullptr, type, extents}});
  };
  add("audio", DType::u16, {rows, shape.audio_samples});  // 16 bits, signed
  add("audio_lengths", DType::i32, {rows});
  add("frame_lengths", DType::i32, {stages + 1, rows});
  add("sample_ids", DType::i64, {rows});
  add("labels", DType::i32, {rows, shape.labels});
  add("label_lengths", DType::i32, {rows});
  return batch;
}

const ModelFamily& fastconformer_family() {
  static const FastConformerFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const FastConformerConfig&) {
  return fastconformer_family();
}

UnitCosts FastConformerFamily::unit_costs(const ModelConfig& config) const {
  constexpr std::int64_t kSeconds = 10, kLabels = 100;
  const auto& c = config.as<FastConformerConfig>();
  return FastConformer::unit_costs(
      c, {.samples = 1, .audio_samples = kSeconds * c.mel.sample_rate, .labels = kLabels});
}

std::string FastConformerFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<FastConformerConfig>();
  return fmt::format(
      "{} of {}, {}, {} taps, subsampling {} with {} channels, {} symbols and the "
      "blank, dropout {}, stochastic depth {}, {} and {} masks of SpecAugment, dither {}",
      counted(c.n_layer, "block"), c.n_embd, counted(c.n_head, "head"), c.conv_kernel,
      c.subsampling, c.subsampling_channels, c.vocab_size, c.dropout, c.stochastic_depth,
      c.augment.frequency_masks, c.augment.time_masks, c.mel.dither);
}

ModelBatch FastConformerFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  return speech_fields(config.as<FastConformerConfig>().stages(), shape);
}

void FastConformerFamily::fill(const ModelConfig& config, const BatchShape& shape,
                               ModelBatch& batch) const {
  const auto& c = config.as<FastConformerConfig>();
  fill_integers(batch["audio_lengths"], shape.audio_samples);
  fill_integers(batch["label_lengths"], shape.labels);
  for (int stage = 0; stage <= c.stages(); ++stage)
    fill_integers(batch["frame_lengths"].slice(stage, 1),
                  c.lengths_after(stage, shape.audio_samples));
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch["sample_ids"].as<std::int64_t>()[row] = row;
}

ops::BenchShape FastConformerFamily::op_shape(const ModelConfig& config,
                                              const BatchShape& shape) const {
  const auto& c = config.as<FastConformerConfig>();
  const std::int64_t frames = c.frames(shape.audio_samples);
  return {.rows = shape.samples * frames,
          .width = c.n_embd,
          .hidden = c.hidden(),
          .vocabulary = c.vocab_size,
          .tokens = frames,
          .head_width = c.n_embd / c.n_head,
          .speech = EncoderTower::op_shape(c, shape.samples, shape.audio_samples),
          .text = false};
}

void FastConformerFamily::clear(ModelBatch& batch) const {
  for (const char* lengths : {"audio_lengths", "label_lengths", "frame_lengths"})
    fill_integers(batch[lengths], 0);
  fill_integers(batch["labels"], -1);
}

std::unique_ptr<TrainingData> FastConformerFamily::open_data(const Deck& deck,
                                                             const BatchSizes& batch, Mesh& mesh,
                                                             Logger& log) const {
  if (deck.data.format == DataFormat::synthetic) {
    const FastConformerConfig& config = speech_of(deck);
    return std::make_unique<SyntheticData>(
        std::make_unique<SyntheticUtterances>(static_cast<std::uint64_t>(deck.run.seed), config),
        config, batch,
        fmt::format("random utterances with random transcripts of {} symbols, nothing is "
                    "read; {} micro-batches a step",
                    config.vocab_size, deck.train.micro_batches));
  }
  return std::make_unique<SpeechTrainingData>(deck, batch, mesh, log);
}

std::unique_ptr<EvaluationData> FastConformerFamily::open_evaluation(const Deck& deck,
                                                                     const std::string& vocabulary,
                                                                     Mesh& mesh,
                                                                     Logger& log) const {
  return std::make_unique<SpeechEvaluationData>(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> FastConformerFamily::synthetic_batches(const ModelConfig& config,
                                                                         std::uint64_t seed,
                                                                         std::int64_t) const {
  return std::make_unique<SyntheticUtterances>(seed, config.as<FastConformerConfig>());
}

std::unique_ptr<BenchBatches> FastConformerFamily::bench_batches(const Deck& deck,
                                                                 const BatchSizes& batch, Mesh&,
                                                                 Logger&,
                                                                 const BenchAudio& audio) const {
  return std::make_unique<SpeechBenchBatches>(model(deck).as<FastConformerConfig>(), batch, audio);
}

void FastConformerFamily::check_start(const Deck& deck, const std::vector<StartingPoint>& points,
                                      const std::string& vocabulary) const {
  if (vocabulary.empty() || source_of_head(deck.checkpoint).empty()) return;
  const Vocabulary ours = Vocabulary::from_json(vocabulary, "the training data");
  for (const StartingPoint& point : points) {
    if (!matches_pattern(point.pattern, kHeadWeight) || point.vocabulary.empty()) continue;
    const Vocabulary theirs = Vocabulary::from_json(point.vocabulary, point.checkpoint);
    // A head of another size is not taken.
    if (theirs.size() != ours.size() || theirs.hash() == ours.hash()) continue;
    throw DeckError(
        fmt::format("checkpoint.init_from: the head of {} writes units {:016x}, the labels of the "
                    "training data are units {:016x}, so its outputs would mean other pieces",
                    point.checkpoint, theirs.hash(), ours.hash()),
        fmt::format("label the data in the units of that run: `choir prepare tokens FOLDER "
                    "--tokenizer {} --name NAME` and data.labels=NAME; or let the head begin anew: "
                    "'checkpoint.init_skip=[\"head.*\"]'",
                    point.checkpoint));
  }
}

void FastConformerFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  SpeechRecogniser(instance).run(batch);
}

}  // namespace choir
