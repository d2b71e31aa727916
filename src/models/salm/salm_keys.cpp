// SalmFamily: its keys in the deck, and the checks of their values with each other.
#include "choir/models/fastconformer/speech_settings.hpp"
#include "choir/models/salm/two_towers.hpp"
#include "src/models/salm/salm_family.hpp"

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
           "rank.")
      .one_of({"layers", "clips"});
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
      .at_most(1024);
  data.add("window", &Part::window, "conversations",
           "Conversations drawn together and sorted into buckets, which affects their order.")
      .at_least(1)
      .at_most(1 << 24);
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
  const bool synthetic = data.format == "synthetic";
  for (KeyProblem& problem : check_blend(settings.data, data.train))
    problems.push_back(std::move(problem));
  if (data.format != "auto" && !synthetic)
    problems.push_back(
        {{"data.format"},
         fmt::format("data.format = \"{}\" is a format of text; legal for conversations with "
                     "audio: auto, synthetic",
                     data.format)});
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

}  // namespace choir
