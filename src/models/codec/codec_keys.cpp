// CodecFamily: the keys that the deck has for it, and what is wrong with their values together.
#include <fmt/core.h>

#include "choir/deck/nearest_legal.hpp"
#include "src/models/codec/codec_family.hpp"
#include "src/models/codec/codec_settings.hpp"

namespace choir {
namespace {

constexpr double kWidestCodec = 1 << 20;

void add_codec_keys(KeyTable<CodecSettings>& table) {
  using Part = CodecConfig;
  auto model = table.section("model", &CodecSettings::model);
  model.add("encoder_width", &Part::encoder_width, "", "Codec: hidden layer of the encoder.")
      .at_least(1)
      .at_most(kWidestCodec);
  model.add("decoder_width", &Part::decoder_width, "", "Codec: hidden layers of the decoder.")
      .at_least(1)
      .at_most(kWidestCodec);
  model.add("codebooks", &Part::codebooks, "", "Codec: codes of a frame.").at_least(1).at_most(64);
  model
      .add("levels", &Part::levels, "",
           "Codec: to how many levels each number of a codebook is rounded; a codebook has as many "
           "codes as their product.")
      .checked("numbers from 2 on, \"8,5,5,5\"", [](const KeyValue& value) -> std::string {
        try {
          ops::FsqLevels::parse(std::get<std::string>(value), "model.levels");
        } catch (const DeckError& error) {
          return fmt::format("{}; legal: {}", error.what(), error.hint());
        }
        return {};
      });
  model.add("rows", &Part::rows, "", "Codec: of features in a frame.").at_least(1).at_most(256);
  using Mel = ops::MelOptions;
  auto mel = table.section<Mel>("model", [](CodecSettings& all) -> Mel& { return all.model.mel; });
  mel.add("mels", &Mel::mels, "bins", "Speech: of the log-mel features.").at_least(1).at_most(1024);
  mel.add("sample_rate", &Mel::sample_rate, "Hz", "Speech: of the audio.")
      .at_least(1000)
      .at_most(192000);
  mel.add("window", &Mel::window, "samples", "Speech: symmetric Hann window.")
      .at_least(2)
      .at_most(65536);
  mel.add("hop", &Mel::hop, "samples", "Speech: between frames.").at_least(1).at_most(65536);
  mel.add("fft", &Mel::fft, "samples", "Speech: length of the transform.")
      .at_least(2)
      .at_most(65536);
  mel.add("mel_high", &Mel::high, "Hz", "Speech: upper edge of the filters. 0: sample_rate / 2.")
      .at_least(0);
  mel.add("log_guard", &Mel::guard, "", "Codec: added to powers before their logarithm.").above(0);
  mel.add("feature_mean", &Mel::mean, "", "Codec: of logarithms, taken from features.");
  mel.add("feature_deviation", &Mel::deviation, "",
          "Codec: of logarithms, which features are divided by.")
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

// Levels that are none are refused where their key is read.
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

std::vector<KeyProblem> CodecFamily::check(const Deck& deck) const {
  const CodecSettings& settings = codec_settings(deck);
  std::vector<KeyProblem> problems = check_tensor_size(model(deck), deck.parallel.tensor);
  if (deck.train.micro_batches == 0) problems.push_back(micro_batches_problem());
  if (deck.parallel.context > 1)
    problems.push_back({{"parallel.context", "model.type"},
                        fmt::format("parallel.context = {} shares tokens of a sequence, which "
                                    "model.type = \"codec\" does not have; legal: 1",
                                    deck.parallel.context)});
  try {
    ops::check(settings.model.mel);
  } catch (const DeckError& error) {
    problems.push_back({{"model.fft"}, fmt::format("{}; {}", error.what(), error.hint())});
  }
  for (KeyProblem& problem : check_speech_data(deck, settings.data))
    problems.push_back(std::move(problem));
  return problems;
}

}  // namespace choir
