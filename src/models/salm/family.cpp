// SalmFamily: its keys in the deck with their checks, the fields of its micro-batches, and its
// runs.

#include "src/models/salm/family.hpp"
#include "src/core/quantities.hpp"

#include <algorithm>

#include "choir/models/family.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/fastconformer/speech_settings.hpp"
#include "src/models/salm/data.hpp"
#include "src/models/salm/generator.hpp"
#include "src/models/salm/two_towers.hpp"

namespace choir {
namespace {

constexpr const char *kEncoder = "model.encoder", *kDecoder = "model.lm";

using Table = KeyTable<SalmSettings>;

void add_adapter_keys(Table& table) {
  auto adapter = table.section<SalmAdapter>(
      "model.adapter", [](SalmSettings& all) -> SalmAdapter& { return all.model.adapter; });
  adapter
      .add(
          "layers", &SalmAdapter::layers, "",
          "Number of blocks after the encoder, of the same kind, with parameters adapter.* (models "
          "with audio input). They are trained when the encoder is frozen.")
      .at_least(0)
      .at_most(10'000);
  adapter
      .add("stack", &SalmAdapter::stack, "frames",
           "Number of adjacent frames that the projector converts to one row of the language model "
           "(models with audio input).")
      .at_least(1)
      .at_most(64);
}

void add_parallel_keys(Table& table) {
  table.section<SalmConfig>("parallel", [](SalmSettings& all) -> SalmConfig& { return all.model; })
      .add("encoder", &SalmConfig::encoder_share, "",
           "Division of the encoder among parallel.tensor ranks (models with audio input). layers: "
           "each layer is divided, as in other models. clips: each rank encodes some clips of a "
           "micro-batch with whole layers, without communication; the encoder must fit on every "
           "rank.");
}

void add_data_keys(Table& table) {
  using Part = SalmSection;
  add_blend_keys(table.section<BlendSection>(
      "data", [](SalmSettings& all) -> BlendSection& { return all.data; }));
  auto data = table.section("data", &SalmSettings::data);
  data.add("batch_tokens", &Part::batch_tokens, "tokens",
           "Rows of a micro-batch: tokens and frames, padding included (conversations with audio).")
      .at_least(1)
      .at_most(1 << 30);
  data.add("max_tokens", &Part::max_tokens, "tokens",
           "Longest conversation; longer ones are skipped and counted (conversations with audio). "
           "0: "
           "model.lm.block_size.")
      .at_least(0)
      .at_most(1 << 30);
  data.add("max_conversations", &Part::max_conversations, "conversations",
           "Largest number of conversations in a micro-batch. 0: no limit.")
      .at_least(0);
  data.add("buckets", &Part::buckets, "",
           "Number of length buckets, each with an equal share of the rows. A micro-batch has "
           "conversations of one bucket.")
      .at_least(1)
      .at_most(1024)
      .not_with("data.format", {"synthetic"});
  data.add("window", &Part::window, "conversations",
           "Conversations drawn together and sorted into buckets, which affects their order.")
      .at_least(1)
      .at_most(1 << 24)
      .not_with("data.format", {"synthetic"});
  table.section<GptConfig>("train", [](SalmSettings& all) -> GptConfig& { return all.model.lm; })
      .add("label_smoothing", &GptConfig::label_smoothing, "",
           "Share of each target that is spread evenly over the vocabulary (Szegedy et al. 2016). "
           "Only the training loss uses it; the validation loss is the plain cross-entropy.")
      .at_least(0)
      .below(1);
  auto eval = table.section("eval", &SalmSettings::data);
  eval.add("answers", &Part::answers, "conversations",
           "Conversations of each validation set whose answers are generated and scored. 0: all; "
           "-1: none.")
      .at_least(-1);
  eval.add("answer_tokens", &Part::answer_tokens, "tokens", "Largest length of a generated answer.")
      .at_least(1)
      .at_most(1 << 20);
}

void check_statistics(const Deck& deck, const SalmConfig& model,
                      std::vector<KeyProblem>& problems) {
  if (model.encoder.conv_norm != ConvNorm::batchnorm) return;
  const auto refuse = [&](std::vector<std::string> keys, const std::string& what,
                          const std::string& also) {
    keys.emplace_back("model.encoder.conv_norm");
    problems.push_back(
        {std::move(keys),
         fmt::format("{} ranks divide the clips of a micro-batch, but "
                     "model.encoder.conv_norm = \"batchnorm\" needs statistics of all clips; "
                     "legal: \"layernorm\"{}",
                     what, also)});
  };
  if (deck.parallel.context > 1)
    refuse({"parallel.context"}, fmt::format("parallel.context = {}", deck.parallel.context), "");
  if (model.shares_clips() && deck.parallel.tensor > 1)
    refuse({"parallel.encoder", "parallel.tensor"},
           fmt::format("parallel.encoder = \"clips\": parallel.tensor = {}", deck.parallel.tensor),
           ", or parallel.encoder = \"layers\"");
}

void check_data(const Deck& deck, std::vector<KeyProblem>& problems) {
  const DataSection& data = deck.data;
  const SalmSettings& settings = salm_settings(deck);
  const bool synthetic = data.format == DataFormat::synthetic;
  for (KeyProblem& problem : check_blend(settings.data, data.train))
    problems.push_back(std::move(problem));
  if (data.format != DataFormat::automatic && !synthetic)
    problems.push_back(
        {{"data.format"},
         fmt::format("data.format = \"{}\" is a format of text; legal for conversations with "
                     "audio: auto, synthetic",
                     name_of(data.format))});
  if (synthetic && settings.model.lm.vocab_size == 0)
    problems.push_back({{"model.lm.vocab_size", "data.format"},
                        "data.format = \"synthetic\" needs model.lm.vocab_size, for example 1024"});
  const std::int64_t most = settings.data.max_tokens, block = settings.model.lm.block_size;
  if (most > block)
    problems.push_back({{"data.max_tokens", "model.lm.block_size"},
                        fmt::format("data.max_tokens = {} is more than model.lm.block_size = {}; "
                                    "nearest legal: {}",
                                    most, block, block)});
}

}  // namespace

const KeySet& SalmFamily::keys() const {
  static const Table kTable = [] {
    Table table;
    table.include<FastConformerConfig>(
        encoder_keys(), kEncoder,
        [](SalmSettings& all) -> FastConformerConfig& { return all.model.encoder; });
    table.include<GptConfig>(decoder_keys(), kDecoder,
                             [](SalmSettings& all) -> GptConfig& { return all.model.lm; });
    table.include<GptConfig>(head_keys(), "train",
                             [](SalmSettings& all) -> GptConfig& { return all.model.lm; });
    add_adapter_keys(table);
    add_parallel_keys(table);
    add_data_keys(table);
    return table;
  }();
  return kTable;
}

void SalmFamily::derive(Deck& deck) const {
  SalmConfig& model = deck.families.of<SalmSettings>().model;
  derive_encoder(deck, model.encoder, kEncoder);
  derive_decoder(deck, model.lm, kDecoder);
}

ModelConfig SalmFamily::model(const Deck& deck) const {
  SalmConfig config = salm_settings(deck).model;
  config.complete();
  return config;
}

std::int64_t& SalmFamily::vocab_size(Deck& deck) const {
  return deck.families.of<SalmSettings>().model.lm.vocab_size;
}

std::vector<KeyProblem> SalmFamily::check_tensor_size(const ModelConfig& config,
                                                      std::int64_t ranks) const {
  return within(kDecoder, choir::check_tensor_size(config.as<SalmConfig>().lm, ranks));
}

std::int64_t SalmFamily::query_heads(const ModelConfig& config) const {
  return config.as<SalmConfig>().lm.n_head;
}

std::vector<KeyProblem> SalmFamily::check(const Deck& deck) const {
  const SalmConfig& model = salm_settings(deck).model;
  const int encoder_ranks = model.shares_clips() ? 1 : deck.parallel.tensor;
  std::vector<KeyProblem> problems =
      within(kEncoder, check_encoder(deck, model.encoder, kEncoder, encoder_ranks));
  for (auto found :
       {check_model(model.lm), choir::check_tensor_size(model.lm, deck.parallel.tensor),
        check_context(deck, model.lm)})
    for (KeyProblem& problem : within(kDecoder, std::move(found)))
      problems.push_back(std::move(problem));
  check_statistics(deck, model, problems);
  if (deck.train.micro_batches == 0) problems.push_back(micro_batches_problem());
  check_data(deck, problems);
  return problems;
}

ModelBatch salm_fields(int stages, const BatchShape& shape) {
  ModelBatch batch;
  batch.samples = shape.samples;
  batch.tokens = shape.tokens;
  const auto add = [&](std::string_view name, DType type, const Shape& extents, Shared shared) {
    batch.add({.name = name, .view = {nullptr, type, extents}, .shared = shared});
  };
  add("audio", DType::u16, {shape.clips, shape.audio_samples}, Shared::rows);  // 16 bits, signed
  add("audio_lengths", DType::i32, {shape.clips}, Shared::rows);
  add("frame_lengths", DType::i32, {stages + 1, shape.clips}, Shared::columns);
  add("sample_ids", DType::i64, {shape.clips}, Shared::rows);
  add("conversation_ids", DType::i64, {shape.samples}, Shared::nothing);
  const TensorView cells{nullptr, DType::i32, {shape.samples * shape.tokens}};
  batch.add({.name = "index", .view = cells, .shared = Shared::positions, .padding = 0});
  batch.add({.name = "targets", .view = cells, .shared = Shared::positions, .padding = -1});
  return batch;
}

const ModelFamily& salm_family() {
  static const SalmFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const SalmConfig&) {
  return salm_family();
}

HeadChunk SalmFamily::head_chunk(const ModelConfig& config, DType logits) const {
  return DecoderTower::chunk_of_head(config.as<SalmConfig>().lm, logits);
}

void SalmFamily::limit_head_chunk(ModelConfig& config, std::int64_t rows) const {
  config.as<SalmConfig>().lm.head_chunk_limit = rows;
}

UnitCosts SalmFamily::unit_costs(const ModelConfig& config) const {
  constexpr std::int64_t kSeconds = 10, kTokens = 64;
  const auto& c = config.as<SalmConfig>();
  const std::int64_t samples = kSeconds * c.encoder.mel.sample_rate;
  return Salm::unit_costs(c, {.samples = 1,
                              .tokens = c.clip_rows().rows(samples) + kTokens,
                              .audio_samples = samples,
                              .clips = 1});
}

std::vector<LossTerm> SalmFamily::loss_terms(const ModelConfig& config) const {
  return token_loss_terms(config.as<SalmConfig>().lm);
}

std::vector<TiedNames> SalmFamily::tied(const ModelConfig& config) const {
  const auto& c = config.as<SalmConfig>();
  if (!c.lm.tied) return {};
  return {{.name = "lm.embedding.tokens.weight", .alias = "lm.head.weight", .unit = c.junction()}};
}

namespace {

std::string adapter_text(const SalmAdapter& adapter) {
  std::string text;
  if (adapter.layers > 0) text += "; adapter: " + counted(adapter.layers, "block");
  if (adapter.stack > 1) text += fmt::format("; {} frames a row", adapter.stack);
  return text;
}

}  // namespace

std::string SalmFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<SalmConfig>();
  return fmt::format(
      "encoder: {} of {}, {}, subsampling {}{}; language model: {} of {}, {} ({} of keys and "
      "values), vocabulary {}, blocks of {}, {}",
      counted(c.encoder.n_layer, "block"), c.encoder.n_embd, counted(c.encoder.n_head, "head"),
      c.encoder.subsampling, adapter_text(c.adapter), counted(c.lm.n_layer, "layer"), c.lm.n_embd,
      counted(c.lm.n_head, "head"), c.lm.n_kv_head, c.lm.vocab_size, c.lm.block_size,
      c.lm.tied ? "tied" : "not tied");
}

ModelBatch SalmFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  return salm_fields(config.as<SalmConfig>().encoder.stages(), shape);
}

namespace {

void fill_integers(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

// Rows begin with the frames of the clips, as many as fit.
void SalmFamily::fill(const ModelConfig& config, const BatchShape& shape, ModelBatch& batch) const {
  const FastConformerConfig& encoder = config.as<SalmConfig>().encoder;
  fill_integers(batch["audio_lengths"], shape.audio_samples);
  for (int stage = 0; stage <= encoder.stages(); ++stage)
    fill_integers(batch["frame_lengths"].slice(stage, 1),
                  encoder.lengths_after(stage, shape.audio_samples));
  for (std::int64_t clip = 0; clip < shape.clips; ++clip)
    batch["sample_ids"].as<std::int64_t>()[clip] = clip;
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch["conversation_ids"].as<std::int64_t>()[row] = row;
  const std::int64_t cells = shape.samples * shape.tokens;
  const std::int64_t rows =
      shape.clips * config.as<SalmConfig>().clip_rows().rows(shape.audio_samples);
  for (std::int64_t at = 0; at < std::min(cells, rows); ++at)
    batch["index"].as<std::int32_t>()[at] = static_cast<std::int32_t>(-1 - at);
}

ops::BenchShape SalmFamily::op_shape(const ModelConfig& config, const BatchShape& shape) const {
  const auto& c = config.as<SalmConfig>();
  ops::BenchShape ops = DecoderTower::op_shape(c.lm, shape);
  ops.speech = EncoderTower::op_shape(c.encoder, shape.clips, shape.audio_samples);
  return ops;
}

void SalmFamily::clear(ModelBatch& batch) const {
  for (const char* lengths : {"audio_lengths", "frame_lengths", "index"})
    fill_integers(batch[lengths], 0);
  fill_integers(batch["targets"], -1);
}

std::unique_ptr<TrainingData> SalmFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                    Mesh& mesh, Logger& log) const {
  if (deck.data.format != DataFormat::synthetic)
    return std::make_unique<SalmTrainingData>(deck, batch, mesh, log);
  const SalmConfig config = model(deck).as<SalmConfig>();
  return std::make_unique<SyntheticData>(
      std::make_unique<SyntheticConversations>(static_cast<std::uint64_t>(deck.run.seed), config),
      config, batch,
      fmt::format("random conversations about noise with a vocabulary of {}, nothing is read; {} "
                  "micro-batches a step",
                  config.vocab_size, deck.train.micro_batches));
}

std::unique_ptr<EvaluationData> SalmFamily::open_evaluation(const Deck& deck,
                                                            const std::string& vocabulary,
                                                            Mesh& mesh, Logger& log) const {
  if (deck.data.format != DataFormat::synthetic)
    return std::make_unique<SalmEvaluationData>(deck, vocabulary, mesh);
  return ModelFamily::open_evaluation(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> SalmFamily::synthetic_batches(const ModelConfig& config,
                                                                std::uint64_t seed,
                                                                std::int64_t) const {
  return std::make_unique<SyntheticConversations>(seed, config.as<SalmConfig>());
}

void SalmFamily::check_start(const Deck&, const std::vector<StartingPoint>& points,
                             const std::string& vocabulary) const {
  if (vocabulary.empty()) return;
  const std::uint64_t ours = Vocabulary::from_json(vocabulary, "the conversations").hash();
  for (const StartingPoint& point : points)
    if (point.pattern.starts_with("lm.") && !point.vocabulary.empty() &&
        Vocabulary::from_json(point.vocabulary, point.checkpoint).hash() != ours)
      throw DeckError(
          fmt::format("checkpoint.init_from: {} has another vocabulary than the conversations, so "
                      "their ids would have other meanings",
                      point.checkpoint),
          "tokenize the conversations with its vocabulary: `choir prepare chat --tokenizer FILE`");
}

void SalmFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  instance.loss_sums(batch);
  SalmGenerator(instance).rehearse(batch);
}

}  // namespace choir
