// The keys of model.type = "fastconformer", and what is wrong with their values together.
#include <fmt/core.h>

#include <array>

#include "deck_tables.hpp"
#include "kernels/spec_augment.hpp"
#include "nearest_legal.hpp"

namespace choir {
namespace {

constexpr double kMostFrames = 1 << 20;

// Of language models alone.
constexpr std::array kTokenKeys{"model.n_kv_head",
                                "model.block_size",
                                "model.tile",
                                "model.bias",
                                "model.tied",
                                "model.norm",
                                "model.activation",
                                "model.position",
                                "model.rope_theta",
                                "model.attention",
                                "train.grad_accum",
                                "train.micro_batch_size",
                                "train.global_batch_size",
                                "data.tokenizer",
                                "data.val_fraction",
                                "eval.batches",
                                "eval.sample_tokens",
                                "eval.sample_prompt",
                                "eval.sample_temperature",
                                "eval.sample_top_k",
                                "train.label_smoothing"};
constexpr std::array kSpeechKeys{
    "model.conv_kernel",      "model.subsampling",  "model.subsampling_channels",
    "model.conv_norm",        "model.xscaling",     "model.causal",
    "model.context_style",    "model.left_context", "model.right_context",
    "model.stochastic_depth", "model.mels",         "model.sample_rate",
    "model.window",           "model.hop",          "model.fft",
    "model.mel_high",         "model.preemphasis",  "model.dither",
    "model.normalise",        "model.freq_masks",   "model.freq_width",
    "model.time_masks",       "model.time_width",   "train.micro_batches"};

void add_encoder_keys(deck::Table& table) {
  using Part = FastConformerConfig;
  auto model =
      table.section<Part>("model", [](Deck& deck) -> Part& { return deck.model.fastconformer; });
  model.add("conv_kernel", &Part::conv_kernel, "taps", "Speech: depthwise convolution. Odd.")
      .at_least(1)
      .at_most(1023);
  model
      .add("subsampling", &Part::subsampling, "",
           "Speech: frames of features per frame of the encoder: 2, 4 or 8.")
      .at_least(2)
      .at_most(8);
  model.add("subsampling_channels", &Part::subsampling_channels, "", "Speech: of its convolutions.")
      .at_least(1)
      .at_most(65536);
  model
      .add("conv_norm", &Part::conv_norm, "",
           "Speech: norm inside the convolution; batchnorm has the statistics of one global "
           "micro-batch.")
      .one_of({"layernorm", "batchnorm"});
  model.add("xscaling", &Part::xscaling, "", "Speech: the input of the blocks times sqrt(n_embd).");
  model.add("causal", &Part::causal, "", "Speech: subsampling and convolutions see no future.");
  model
      .add("context_style", &Part::context_style, "",
           "Speech: regular: frames attend to left_context ... right_context around them. chunked: "
           "to their own chunk of right_context + 1 and whole chunks before it.")
      .one_of({"regular", "chunked"});
  model.add("left_context", &Part::left_context, "frames", "Speech: of the encoder. -1: all.")
      .at_least(-1)
      .at_most(kMostFrames);
  model.add("right_context", &Part::right_context, "frames", "Speech: of the encoder. -1: all.")
      .at_least(-1)
      .at_most(kMostFrames);
  model
      .add("stochastic_depth", &Part::stochastic_depth, "probability",
           "Speech: of leaving out the last block; linear from 0 at the first.")
      .at_least(0)
      .below(1);
  model.add("normalise", &Part::normalise, "",
            "Speech: features to mean 0 and deviation 1 per utterance and bin.");
}

void add_feature_keys(deck::Table& table) {
  using Mel = ops::MelOptions;
  auto mel =
      table.section<Mel>("model", [](Deck& deck) -> Mel& { return deck.model.fastconformer.mel; });
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
  mel.add("preemphasis", &Mel::preemphasis, "", "Speech: y[n] = x[n] - p x[n - 1].")
      .at_least(0)
      .below(1);
  mel.add("dither", &Mel::dither, "", "Speech: noise on audio in [-1, 1), while training.")
      .at_least(0);

  using Augment = ops::SpecAugment;
  auto augment = table.section<Augment>(
      "model", [](Deck& deck) -> Augment& { return deck.model.fastconformer.augment; });
  augment.add("freq_masks", &Augment::frequency_masks, "", "Speech: SpecAugment, of frequency.")
      .at_least(0)
      .at_most(1000);
  augment.add("freq_width", &Augment::frequency_width, "bins", "Speech: of the widest.")
      .at_least(0)
      .at_most(1024);
  augment.add("time_masks", &Augment::time_masks, "", "Speech: SpecAugment, of time.")
      .at_least(0)
      .at_most(1000);
  augment
      .add("time_width", &Augment::time_width, "frames",
           "Speech: of the widest; below 1: that part of the utterance.")
      .at_least(0);
}

bool given(const Deck& deck, const std::string& key) {
  const auto origin = deck.origins.find(key);
  return origin != deck.origins.end() && origin->second.source != KeySource::derived;
}

class SpeechChecks {
 public:
  explicit SpeechChecks(const Deck& deck) : deck_(deck), speech_(speech_of(deck)) {}

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
    if (deck_.train.micro_batches == 0)
      add({"train.micro_batches"},
          "train.micro_batches is not given: say how many micro-batches a step has on all ranks "
          "together");
  }

  void features() {
    const ops::MelOptions& mel = speech_.mel;
    if (mel.fft < mel.window)
      add({"model.fft", "model.window"},
          fmt::format("model.fft = {} is shorter than model.window = {}; nearest legal: {}",
                      mel.fft, mel.window, mel.window));
    const double most = static_cast<double>(mel.sample_rate) / 2;
    if (mel.high > most)
      add({"model.mel_high", "model.sample_rate"},
          fmt::format("model.mel_high = {} is above half of model.sample_rate; nearest legal: {}",
                      mel.high, most));
  }

  void augmentation() {
    const ops::SpecAugment& augment = speech_.augment;
    const std::int64_t mels = speech_.mel.mels, width = augment.frequency_width;
    if (augment.frequency_masks > 0 && width > mels)
      add({"model.freq_width", "model.mels"},
          fmt::format("model.freq_width = {}{} is more than model.mels = {} has; nearest legal: "
                      "{}, or model.freq_masks = 0",
                      width, given(deck_, "model.freq_width") ? "" : " (the default)", mels, mels));
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

  void parallel() {
    const ParallelSection& p = deck_.parallel;
    if (p.context > 1)
      add({"parallel.context", "model.type"},
          fmt::format("parallel.context = {} shares tokens of a sequence, which model.type = "
                      "\"fastconformer\" does not have; legal: 1",
                      p.context));
    const auto divides = [&](const char* key, std::int64_t value) {
      if (value % p.tensor == 0) return;
      add({std::string("model.") + key, "parallel.tensor"},
          fmt::format("model.{} = {} cannot be divided among parallel.tensor = {} ranks; nearest "
                      "legal: {} = {}, or tensor = {}",
                      key, value, p.tensor, key, multiples_around(value, p.tensor),
                      divisors_around(value, p.tensor, kMostTensorRanks)));
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
  FastConformerConfig speech_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

FastConformerConfig speech_of(const Deck& deck) {
  FastConformerConfig c = deck.model.fastconformer;
  const GptConfig& shared = deck.model.gpt;
  const auto take = [&](const char* key, auto& to, const auto& from) {
    if (given(deck, key)) to = from;
  };
  take("model.n_layer", c.n_layer, shared.n_layer);
  take("model.n_embd", c.n_embd, shared.n_embd);
  take("model.n_head", c.n_head, shared.n_head);
  take("model.ffn_width", c.ffn_width, shared.ffn_width);
  take("model.dropout", c.dropout, shared.dropout);
  take("model.norm_eps", c.norm_eps, shared.norm_eps);
  c.vocab_size = shared.vocab_size;
  return c;
}

void deck::show_speech(Deck& deck) {
  const FastConformerConfig c = speech_of(deck);
  GptConfig& shared = deck.model.gpt;
  const auto show = [&](const char* key, auto& to, const auto& from) {
    if (given(deck, key) && to == from) return;
    to = from;
    deck.mark_derived(key);
  };
  show("model.n_layer", shared.n_layer, c.n_layer);
  show("model.n_embd", shared.n_embd, c.n_embd);
  show("model.n_head", shared.n_head, c.n_head);
  show("model.ffn_width", shared.ffn_width, c.hidden());
  show("model.dropout", shared.dropout, c.dropout);
  show("model.norm_eps", shared.norm_eps, c.norm_eps);
}

void deck::add_speech_keys(Table& table) {
  add_encoder_keys(table);
  add_feature_keys(table);
}

std::vector<KeyProblem> deck::check_kind(const Deck& deck) {
  std::vector<KeyProblem> problems;
  const auto refuse = [&](const auto& keys, const char* other) {
    for (const auto& key : keys)
      if (given(deck, key))
        problems.push_back({{key, "model.type"},
                            fmt::format("{} is for model.type = \"{}\", not \"{}\"; leave it out",
                                        key, other, deck.model.type)});
  };
  if (deck.model.speech()) {
    refuse(kTokenKeys, "gpt");
  } else {
    refuse(kSpeechKeys, "fastconformer");
    refuse(speech_data_keys(), "fastconformer");
  }
  return problems;
}

std::vector<KeyProblem> deck::check_speech(const Deck& deck) {
  SpeechChecks checks(deck);
  checks.shape();
  checks.features();
  checks.augmentation();
  checks.context();
  checks.parallel();
  return checks.take();
}

}  // namespace choir
