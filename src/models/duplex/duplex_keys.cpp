// DuplexFamily: the keys that the deck has for it, and what is wrong with their values together.
#include "choir/deck/nearest_legal.hpp"
#include "choir/models/fastconformer/speech_settings.hpp"
#include "choir/models/fastconformer/speech_windows.hpp"
#include "choir/models/salm/two_towers.hpp"
#include "src/models/duplex/duplex_family.hpp"

namespace choir {
namespace {

constexpr const char *kHearingSection = "model.encoder", *kSpeakingSection = "model.lm";
constexpr double kMostCodebooks = 256;

using DuplexTable = KeyTable<DuplexSettings>;

void add_code_keys(DuplexTable& table) {
  auto model = table.section("model", &DuplexSettings::model);
  model
      .add("codebooks", &DuplexConfig::codebooks, "",
           "Speech to speech: codes of the agent in a frame, one of each codebook.")
      .at_least(1)
      .at_most(kMostCodebooks);
  model
      .add("codes", &DuplexConfig::codes, "",
           "Speech to speech: of a codebook, as the codec has them. Three more stand for the "
           "beginning and the end of a turn, and for what is before the first frame.")
      .at_least(1)
      .at_most(static_cast<double>(DuplexConfig::kMostCodes));
  model
      .add("user_weight", &DuplexConfig::user_weight, "",
           "Speech to speech: of the user's frames in the sum with text and codes.")
      .at_least(0);
}

void add_loss_keys(DuplexTable& table) {
  auto loss = table.section<DuplexLoss>(
      "model.loss", [](DuplexSettings& all) -> DuplexLoss& { return all.model.loss; });
  loss.add("text", &DuplexLoss::text, "",
           "Speech to speech: weight of the mean loss of the agent's text.")
      .at_least(0);
  loss.add("audio", &DuplexLoss::audio, "",
           "Speech to speech: weight of the mean loss of the agent's codes.")
      .at_least(0);
  loss.add("pad", &DuplexLoss::pad, "",
           "Speech to speech: weight of frames without text, beside 1 of those with a token of it. "
           "The mean is over all frames.")
      .at_least(0);
  loss.add(
          "pad_in_turn", &DuplexLoss::pad_in_turn, "",
          "Speech to speech: weight of frames without text within a turn, behind its text. Weights "
          "bend decisions: with less than 1 it says words that are not due. -1: as pad.")
      .at_least(-1);
  loss.add("bos", &DuplexLoss::bos, "", "Speech to speech: weight of frames that begin a turn.")
      .at_least(0);
  loss.add("eos", &DuplexLoss::eos, "", "Speech to speech: weight of frames that end a turn.")
      .at_least(0);
}

/// Ranks divide the codebooks, or codebooks the ranks.
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
           list + ": who answers while the other one still speaks cannot hear recordings as a "
                  "whole; legal: model.causal = true, model.context_style = \"chunked\", "
                  "model.left_context of 0 or more, model.normalise = false, model.conv_norm = "
                  "\"layernorm\""}};
}

void add_dialogue_keys(DuplexTable& table) {
  using Part = DuplexSection;
  add_blend_keys(table.section<BlendSection>(
      "data", [](DuplexSettings& all) -> BlendSection& { return all.data; }));
  auto data = table.section("data", &DuplexSettings::data);
  data.add("codes", &Part::codes, "",
           "Dialogues: NAME of the codes of the agent, agent/codes.NAME.bin of `choir prepare "
           "codes`.");
  data.add("batch_duration", &Part::batch_duration, "s",
           "Dialogues: duration of a micro-batch, padding included.")
      .above(0);
  data.add("max_dialogues", &Part::max_dialogues, "dialogues", "Of a micro-batch. 0: any number.")
      .at_least(0);
  data.add("buckets", &Part::buckets, "",
           "Kinds of length that micro-batches are made of, by an equal share of the duration.")
      .at_least(1)
      .at_most(1024);
  data.add("window", &Part::window, "dialogues",
           "Drawn together and sorted into buckets; the order of the data depends on it.")
      .at_least(1)
      .at_most(1 << 24);
  data.add("on_bad", &Part::on_bad, "",
           "Dialogues whose audio is damaged: stop, or skip up to 1 % of them.")
      .one_of({"stop", "skip"});
  auto eval = table.section("eval", &DuplexSettings::data);
  eval.add("dialogues", &Part::dialogues, "dialogues",
           "Speech to speech: of each validation set, that the model holds by itself, frame by "
           "frame, and whose turns are scored. 0: none; -1: all.")
      .at_least(-1);
  eval.add("codec", &Part::codec, "",
           "Speech to speech: run of the codec of data.codes, by which what the model says in "
           "validation becomes sound for eval.recogniser.");
  eval.add("recogniser", &Part::recogniser, "",
           "Speech to speech: run of a recogniser (model.type = \"fastconformer\") that writes "
           "down what is heard of the agent: error rate of words and BLEU against the text of its "
           "turns, of one that the user breaks into against the words that it has the time to say "
           "(of manifests with an alignment of words). On the CPU, in host memory.");
}

/// The agent is heard by both runs, or not at all.
void check_hearing(const DuplexSection& data, std::vector<KeyProblem>& problems) {
  if (data.codec.empty() != data.recogniser.empty()) {
    const bool speaks = data.recogniser.empty();
    problems.push_back(
        {{"eval.codec", "eval.recogniser"},
         fmt::format("eval.{} = \"{}\" is of no use without eval.{}: the one makes sound of codes, "
                     "the other text of the sound; give both or neither",
                     speaks ? "codec" : "recogniser", speaks ? data.codec : data.recogniser,
                     speaks ? "recogniser" : "codec")});
  }
  if (data.dialogues == 0 && !data.codec.empty() && !data.recogniser.empty())
    problems.push_back({{"eval.dialogues", "eval.recogniser"},
                        "eval.dialogues = 0 leaves eval.recogniser nothing to hear; legal: 1 or "
                        "more, or -1 for all"});
}

void check_dialogues(const Deck& deck, std::vector<KeyProblem>& problems) {
  constexpr std::int64_t kFewest = 4;  // the controls, and a word
  const DataSection& data = deck.data;
  if (data.format != "auto" && data.format != "synthetic")
    problems.push_back({{"data.format"},
                        fmt::format("data.format = \"{}\" is not of dialogues; legal for "
                                    "model.type = \"duplex\": auto, synthetic",
                                    data.format)});
  for (KeyProblem& problem : check_blend(duplex_settings(deck).data, data.train))
    problems.push_back(std::move(problem));
  check_hearing(duplex_settings(deck).data, problems);
  const std::int64_t vocabulary = duplex_settings(deck).model.lm.vocab_size;
  if (deck.data.format == "synthetic" && vocabulary < kFewest)
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

}  // namespace choir
