// DuplexFamily: its keys in the deck with their checks, its micro-batches, and its runs.

#include "src/models/duplex/family.hpp"
#include "src/core/quantities.hpp"

#include <algorithm>

#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/deck/nearest_legal.hpp"
#include "src/models/duplex/data.hpp"
#include "src/models/duplex/evaluation.hpp"
#include "src/models/fastconformer/speech_settings.hpp"
#include "src/models/fastconformer/speech_windows.hpp"
#include "src/models/salm/two_towers.hpp"

namespace choir {
namespace {

constexpr const char *kHearingSection = "model.encoder", *kSpeakingSection = "model.lm";
constexpr double kMostCodebooks = 256;

using DuplexTable = KeyTable<DuplexSettings>;

void add_code_keys(DuplexTable& table) {
  auto model = table.section("model", &DuplexSettings::model);
  model
      .add("codebooks", &DuplexConfig::codebooks, "",
           "Codebooks of the agent; a frame has one code of each (speech to speech).")
      .at_least(1)
      .at_most(kMostCodebooks);
  model
      .add("codes", &DuplexConfig::codes, "",
           "Number of codes in a codebook, as in the codec (speech to speech). Three further codes "
           "mark the beginning and the end of a turn, and the frame before the first.")
      .at_least(1)
      .at_most(static_cast<double>(DuplexConfig::kMostCodes));
  model
      .add("user_weight", &DuplexConfig::user_weight, "",
           "Weight of the user's frames in the sum with text and codes (speech to speech).")
      .at_least(0);
}

void add_loss_keys(DuplexTable& table) {
  auto loss = table.section<DuplexLoss>(
      "model.loss", [](DuplexSettings& all) -> DuplexLoss& { return all.model.loss; });
  loss.add("text", &DuplexLoss::text, "",
           "Weight of the mean loss of the agent's text (speech to speech).")
      .at_least(0);
  loss.add("audio", &DuplexLoss::audio, "",
           "Weight of the mean loss of the agent's codes (speech to speech).")
      .at_least(0);
  loss.add("pad", &DuplexLoss::pad, "",
           "Weight of frames without text, relative to frames with a token of text (speech to "
           "speech). The mean is over all frames.")
      .at_least(0);
  loss.add("pad_in_turn", &DuplexLoss::pad_in_turn, "",
           "Weight of frames within a turn after its text (speech to speech). Weights affect "
           "decisions: with less than 1 the model says words that are not due. -1: like pad.")
      .at_least(-1);
  loss.add("bos", &DuplexLoss::bos, "", "Weight of frames that begin a turn (speech to speech).")
      .at_least(0);
  loss.add("eos", &DuplexLoss::eos, "", "Weight of frames that end a turn (speech to speech).")
      .at_least(0);
}

/// The number of ranks must divide the number of codebooks, or the reverse.
std::vector<KeyProblem> check_codebooks(const DuplexConfig& config, std::int64_t ranks) {
  const std::int64_t codebooks = config.codebooks;
  if (codebooks % ranks == 0 || ranks % codebooks == 0) return {};
  return {{{"model.codebooks", "parallel.tensor"},
           fmt::format("model.codebooks = {} cannot be divided among parallel.tensor = {} ranks, "
                       "nor these among them; nearest legal: codebooks = {}, or tensor = {}",
                       codebooks, ranks, multiples_around(codebooks, ranks),
                       divisors_around(codebooks, ranks, codebooks))}};
}

std::vector<KeyProblem> check_streaming(const DuplexConfig& config) {
  const std::vector<std::string> against = keys_against_streaming(config.encoder);
  if (against.empty()) return {};
  std::string list;
  std::vector<std::string> keys;
  for (const std::string& key : against) {
    list += (list.empty() ? "" : ", ") + key;
    keys.push_back(key.substr(0, key.find(' ')));
  }
  return {{std::move(keys),
           list + ": a model that answers while the user still speaks cannot wait for whole "
                  "recordings; legal: model.causal = true, model.context_style = \"chunked\", "
                  "model.left_context of 0 or more, model.normalise = false, model.conv_norm = "
                  "\"layernorm\""}};
}

void add_dialogue_keys(DuplexTable& table) {
  using Part = DuplexSection;
  add_blend_keys(table.section<BlendSection>(
      "data", [](DuplexSettings& all) -> BlendSection& { return all.data; }));
  auto data = table.section("data", &DuplexSettings::data);
  data.add("codes", &Part::codes, "",
           "NAME of the agent's codes (dialogues), agent/codes.NAME.bin of `choir prepare codes`.");
  data.add("batch_duration", &Part::batch_duration, "s",
           "Largest duration of a micro-batch, padding included (dialogues).")
      .above(0);
  data.add("max_dialogues", &Part::max_dialogues, "dialogues",
           "Largest number of dialogues in a micro-batch. 0: no limit.")
      .at_least(0);
  data.add("buckets", &Part::buckets, "",
           "Number of length buckets, each with an equal share of the duration. A micro-batch has "
           "dialogues of one bucket.")
      .at_least(1)
      .at_most(1024)
      .not_with("data.format", {"synthetic"});
  data.add("window", &Part::window, "dialogues",
           "Dialogues drawn together and sorted into buckets, which affects their order.")
      .at_least(1)
      .at_most(1 << 24)
      .not_with("data.format", {"synthetic"});
  data.add("on_bad", &Part::on_bad, "",
           "Treatment of dialogues with damaged audio: stop, or skip up to 1 % of them.")
      .one_of({"stop", "skip"});
  auto eval = table.section("eval", &DuplexSettings::data);
  eval.add("dialogues", &Part::dialogues, "dialogues",
           "Dialogues of each validation set that the model holds by itself, frame by frame, and "
           "whose "
           "turns are scored (speech to speech). 0: none; -1: all.")
      .at_least(-1);
  eval.add(
      "codec", &Part::codec, "",
      "Run of the codec of data.codes, which converts the agent's codes in validation to sound "
      "for eval.recogniser (speech to speech).");
  eval.add(
      "recogniser", &Part::recogniser, "",
      "Run of a recogniser (model.type = \"fastconformer\") that transcribes the agent in "
      "validation (speech to speech). Word error rate and BLEU compare this with the text of its "
      "turns or, if the user interrupts a turn, with the words that fit before the interruption "
      "(from manifests with word alignments).");
  eval.add(
      "scorer_device", &Part::scorer_device, "",
      "Device on which eval.codec and eval.recogniser compute (speech to speech). cpu: the CPU "
      "of each rank, in host memory; shared: the device of the model that is evaluated, which "
      "holds them beside training. The memory plan has both.");
}

/// Transcription of the agent needs both runs.
void check_hearing(const DuplexSection& data, std::vector<KeyProblem>& problems) {
  if (data.codec.empty() != data.recogniser.empty()) {
    const bool speaks = data.recogniser.empty();
    problems.push_back(
        {{"eval.codec", "eval.recogniser"},
         fmt::format("eval.{} = \"{}\" has no effect without eval.{}: one converts codes to sound, "
                     "the other sound to text; set both or neither",
                     speaks ? "codec" : "recogniser", speaks ? data.codec : data.recogniser,
                     speaks ? "recogniser" : "codec")});
  }
  if (data.scorer_device != ScorerDevice::cpu && data.recogniser.empty())
    problems.push_back(
        {{"eval.scorer_device", "eval.recogniser"},
         fmt::format("eval.scorer_device = \"{}\" has no effect without eval.recogniser; leave it "
                     "out, or set eval.codec and eval.recogniser",
                     name_of(data.scorer_device))});
  if (data.dialogues == 0 && !data.codec.empty() && !data.recogniser.empty())
    problems.push_back(
        {{"eval.dialogues", "eval.recogniser"},
         "eval.dialogues = 0 leaves nothing to transcribe for eval.recogniser; legal: "
         "1 or more, or -1 for all"});
}

void check_dialogues(const Deck& deck, std::vector<KeyProblem>& problems) {
  constexpr std::int64_t kFewest = 4;  // the controls, and a word
  const DataSection& data = deck.data;
  if (data.format != DataFormat::automatic && data.format != DataFormat::synthetic)
    problems.push_back({{"data.format"},
                        fmt::format("data.format = \"{}\" is not a format of dialogues; legal for "
                                    "model.type = \"duplex\": auto, synthetic",
                                    name_of(data.format))});
  for (KeyProblem& problem : check_blend(duplex_settings(deck).data, data.train))
    problems.push_back(std::move(problem));
  check_hearing(duplex_settings(deck).data, problems);
  const std::int64_t vocabulary = duplex_settings(deck).model.lm.vocab_size;
  if (deck.data.format == DataFormat::synthetic && vocabulary < kFewest)
    problems.push_back({{"model.lm.vocab_size", "data.format"},
                        fmt::format("data.format = \"synthetic\" needs model.lm.vocab_size, which "
                                    "is {}; legal: {} or more",
                                    vocabulary, kFewest)});
}

}  // namespace

const KeySet& DuplexFamily::keys() const {
  static const DuplexTable kTable = [] {
    DuplexTable table;
    table.include<FastConformerConfig>(
        encoder_keys(), kHearingSection,
        [](DuplexSettings& all) -> FastConformerConfig& { return all.model.encoder; });
    table.include<GptConfig>(decoder_keys(), kSpeakingSection,
                             [](DuplexSettings& all) -> GptConfig& { return all.model.lm; });
    table.include<GptConfig>(head_keys(), "train",
                             [](DuplexSettings& all) -> GptConfig& { return all.model.lm; });
    add_code_keys(table);
    add_loss_keys(table);
    add_dialogue_keys(table);
    return table;
  }();
  return kTable;
}

void DuplexFamily::derive(Deck& deck) const {
  DuplexConfig& model = deck.families.of<DuplexSettings>().model;
  derive_encoder(deck, model.encoder, kHearingSection);
  derive_decoder(deck, model.lm, kSpeakingSection);
}

ModelConfig DuplexFamily::model(const Deck& deck) const {
  DuplexConfig config = duplex_settings(deck).model;
  config.complete();
  return config;
}

std::int64_t& DuplexFamily::vocab_size(Deck& deck) const {
  return deck.families.of<DuplexSettings>().model.lm.vocab_size;
}

std::vector<KeyProblem> DuplexFamily::check_tensor_size(const ModelConfig& config,
                                                        std::int64_t ranks) const {
  const auto& c = config.as<DuplexConfig>();
  std::vector<KeyProblem> problems =
      within(kSpeakingSection, choir::check_tensor_size(c.lm, ranks));
  for (KeyProblem& problem : check_codebooks(c, ranks)) problems.push_back(std::move(problem));
  return problems;
}

std::int64_t DuplexFamily::query_heads(const ModelConfig& config) const {
  return config.as<DuplexConfig>().lm.n_head;
}

std::vector<KeyProblem> DuplexFamily::check(const Deck& deck) const {
  const DuplexConfig& model = duplex_settings(deck).model;
  std::vector<KeyProblem> problems;
  const auto add = [&](std::vector<KeyProblem> found) {
    for (KeyProblem& problem : found) problems.push_back(std::move(problem));
  };
  add(within(kHearingSection,
             check_encoder(deck, model.encoder, kHearingSection, deck.parallel.tensor)));
  add(within(kHearingSection, check_streaming(model)));
  add(within(kSpeakingSection, check_model(model.lm)));
  add(within(kSpeakingSection, choir::check_tensor_size(model.lm, deck.parallel.tensor)));
  add(within(kSpeakingSection, check_context(deck, model.lm)));
  add(check_codebooks(model, deck.parallel.tensor));
  if (model.loss.text == 0 && model.loss.audio == 0)
    problems.push_back({{"model.loss.text", "model.loss.audio"},
                        "model.loss.text = 0 and model.loss.audio = 0 leave nothing to learn; "
                        "legal: one of them above 0"});
  if (deck.train.micro_batches == 0) problems.push_back(micro_batches_problem());
  check_dialogues(deck, problems);
  return problems;
}

const ModelFamily& duplex_family() {
  static const DuplexFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const DuplexConfig&) {
  return duplex_family();
}

std::vector<LossTerm> DuplexFamily::loss_terms(const ModelConfig& config) const {
  const auto& c = config.as<DuplexConfig>();
  std::vector<LossTerm> terms{{"text_loss", c.loss.text}, {"codes_loss", c.loss.audio}};
  add_z_loss(c.lm.z_loss, terms);
  return terms;
}

HeadChunk DuplexFamily::head_chunk(const ModelConfig& config, DType logits) const {
  return DecoderTower::chunk_of_head(config.as<DuplexConfig>().lm, logits);
}

void DuplexFamily::limit_head_chunk(ModelConfig& config, std::int64_t rows) const {
  config.as<DuplexConfig>().lm.head_chunk_limit = rows;
}

UnitCosts DuplexFamily::unit_costs(const ModelConfig& config) const {
  constexpr std::int64_t kSeconds = 20;
  const auto& c = config.as<DuplexConfig>();
  const std::int64_t samples = kSeconds * c.encoder.mel.sample_rate;
  return Duplex::unit_costs(
      c, {.samples = 1, .tokens = c.encoder.frames(samples), .audio_samples = samples});
}

std::vector<TiedNames> DuplexFamily::tied(const ModelConfig& config) const {
  const auto& c = config.as<DuplexConfig>();
  if (!c.lm.tied) return {};
  return {{.name = "lm.embedding.tokens.weight", .alias = "lm.head.weight", .unit = c.junction()}};
}

std::string DuplexFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<DuplexConfig>();
  return fmt::format(
      "encoder: {} of {}, {}, chunks of {} of {:.0f} ms; language model: {} of {}, {} ({} of keys "
      "and values), vocabulary {}, {} at most, {}; {} of {}",
      counted(c.encoder.n_layer, "block"), c.encoder.n_embd, counted(c.encoder.n_head, "head"),
      counted(c.encoder.right_context + 1, "frame"), 1000 * c.encoder.seconds_per_frame(),
      counted(c.lm.n_layer, "layer"), c.lm.n_embd, counted(c.lm.n_head, "head"), c.lm.n_kv_head,
      c.lm.vocab_size, counted(c.lm.block_size, "frame"), c.lm.tied ? "tied" : "not tied",
      counted(c.codebooks, "codebook"), c.codes);
}

ModelBatch DuplexFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  return duplex_fields(config.as<DuplexConfig>(), shape);
}

namespace {

void fill_all(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

void DuplexFamily::fill(const ModelConfig& config, const BatchShape& shape,
                        ModelBatch& batch) const {
  const auto& c = config.as<DuplexConfig>();
  fill_all(batch["audio_lengths"], shape.audio_samples);
  for (int stage = 0; stage <= c.encoder.stages(); ++stage)
    fill_all(batch["frame_lengths"].slice(stage, 1),
             c.encoder.lengths_after(stage, shape.audio_samples));
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch["sample_ids"].as<std::int64_t>()[row] = batch["dialogue_ids"].as<std::int64_t>()[row] =
        row;
  hear_frames(c, batch);
  const TensorView& weights = batch["text_weights"];
  std::fill_n(weights.as<float>(), weights.count(), 1.0F);
}

ops::BenchShape DuplexFamily::op_shape(const ModelConfig& config, const BatchShape& shape) const {
  const auto& c = config.as<DuplexConfig>();
  ops::BenchShape ops = DecoderTower::op_shape(c.lm, shape);
  ops.speech = EncoderTower::op_shape(c.encoder, shape.samples, shape.audio_samples);
  return ops;
}

void DuplexFamily::clear(ModelBatch& batch) const {
  for (const char* zeros : {"audio_lengths", "frame_lengths", "frames", "text", "codes"})
    fill_all(batch[zeros], 0);
  for (const char* targets : {"text_targets", "code_targets"}) fill_all(batch[targets], -1);
  const TensorView& weights = batch["text_weights"];
  std::fill_n(weights.as<float>(), weights.count(), 0.0F);
}

std::unique_ptr<TrainingData> DuplexFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                      Mesh& mesh, Logger& log) const {
  if (deck.data.format != DataFormat::synthetic)
    return std::make_unique<DuplexTrainingData>(deck, batch, mesh, log);
  const DuplexConfig config = model(deck).as<DuplexConfig>();
  return std::make_unique<SyntheticData>(
      std::make_unique<SyntheticDialogues>(static_cast<std::uint64_t>(deck.run.seed), config),
      config, batch,
      fmt::format("random dialogues about noise with a vocabulary of {} and {} codebooks of {}, "
                  "nothing is read; {} micro-batches a step",
                  config.vocab_size, config.codebooks, config.codes, deck.train.micro_batches));
}

std::unique_ptr<EvaluationData> DuplexFamily::open_evaluation(const Deck& deck,
                                                              const std::string& vocabulary,
                                                              Mesh& mesh, Logger& log) const {
  if (deck.data.format != DataFormat::synthetic)
    return std::make_unique<DuplexEvaluationData>(deck, vocabulary, mesh, log);
  return ModelFamily::open_evaluation(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> DuplexFamily::synthetic_batches(const ModelConfig& config,
                                                                  std::uint64_t seed,
                                                                  std::int64_t) const {
  return std::make_unique<SyntheticDialogues>(seed, config.as<DuplexConfig>());
}

void DuplexFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  instance.loss_sums(batch);
  if (instance.mesh().layout().size(Axis::pipeline) == 1)
    DialogueGroup(instance, {}).rehearse(batch);
}

}  // namespace choir
