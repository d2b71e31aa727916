// model_config.yaml for a model of ours: the inverse of nemo_model_of().

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/models/fastconformer/foreign/nemo.hpp"

namespace choir {
namespace {

using Yaml = nlohmann::ordered_json;

/// A text in double quotes, in ASCII.
std::string quoted_yaml(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    CHOIR_CHECK(c.length > 0, "a text for YAML is not UTF-8");
    text.remove_prefix(static_cast<std::size_t>(c.length));
    const auto code = static_cast<std::uint32_t>(c.value);
    if (code == '"' || code == '\\')
      quoted += fmt::format("\\{}", static_cast<char>(code));
    else if (code >= ' ' && code < 0x7f)
      quoted += static_cast<char>(code);
    else
      quoted += code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
  }
  return quoted + '"';
}

/// PyYAML takes a number without a point, such as 1e-05, for a text.
std::string real_yaml(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string scalar_yaml(const Yaml& value) {
  if (value.is_string()) return quoted_yaml(value.get_ref<const std::string&>());
  return value.is_number_float() ? real_yaml(value.get<double>()) : value.dump();
}

/// A mapping of mappings, lists of scalars, and scalars.
void put_yaml(std::string& to, const Yaml& mapping, const std::string& indent) {
  for (const auto& [key, value] : mapping.items()) {
    to += indent + key + ":";
    if (value.is_object()) {
      to += '\n';
      put_yaml(to, value, indent + "  ");
    } else if (value.is_array()) {
      to += '\n';
      for (const Yaml& item : value) to += indent + "- " + scalar_yaml(item) + '\n';
    } else {
      to += ' ' + scalar_yaml(value) + '\n';
    }
  }
}

/// Refuses what NeMo's modules do not compute.
void require_nemo(const FastConformerConfig& c) {
  std::vector<std::string> lacking;
  if (c.hidden() % c.n_embd != 0)
    lacking.push_back(
        fmt::format("model.ffn_width = {}, which is not a multiple of model.n_embd = {}",
                    c.hidden(), c.n_embd));
  if (c.norm_eps != 1e-5)
    lacking.push_back(fmt::format("model.norm_eps = {}, where NeMo always adds 1e-05", c.norm_eps));
  if (!lacking.empty())
    throw DeckError(fmt::format("--format nemo cannot express {}", join(lacking, ", ")),
                    "train a recogniser with other values of these keys");
}

/// A number of samples, in seconds if NeMo, which cuts off fractions, computes the same number.
void put_samples(Yaml& section, const char* seconds_key, const char* samples_key,
                 std::int64_t samples, std::int64_t rate) {
  const double seconds = static_cast<double>(samples) / static_cast<double>(rate);
  const bool exact = static_cast<std::int64_t>(seconds * static_cast<double>(rate)) == samples;
  section[seconds_key] = exact ? Yaml(seconds) : Yaml();
  if (!exact) section[samples_key] = samples;
}

Yaml features_of(const FastConformerConfig& c) {
  const ops::MelOptions& mel = c.mel;
  Yaml features{{"_target_", "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor"},
                {"sample_rate", mel.sample_rate},
                {"normalize", c.normalise ? Yaml("per_feature") : Yaml()}};
  put_samples(features, "window_size", "n_window_size", mel.window, mel.sample_rate);
  put_samples(features, "window_stride", "n_window_stride", mel.hop, mel.sample_rate);
  features.update({{"window", "hann"},
                   {"features", mel.mels},
                   {"n_fft", mel.fft},
                   {"lowfreq", 0},
                   {"highfreq", mel.high > 0 ? Yaml(mel.high) : Yaml()},
                   {"preemph", mel.preemphasis > 0 ? Yaml(mel.preemphasis) : Yaml()},
                   {"log", true},
                   {"frame_splicing", 1},
                   {"dither", mel.dither},
                   {"pad_to", 0},
                   {"pad_value", 0.0}});
  return features;
}

Yaml augmentation_of(const ops::SpecAugment& augment) {
  // In NeMo a whole number is one of frames, and a real number a fraction.
  const double width = augment.time_width;
  return {{"_target_", "nemo.collections.asr.modules.SpectrogramAugmentation"},
          {"freq_masks", augment.frequency_masks},
          {"time_masks", augment.time_masks},
          {"freq_width", augment.frequency_width},
          {"time_width", width < 1 ? Yaml(width) : Yaml(std::llround(width))}};
}

Yaml encoder_of(const FastConformerConfig& c) {
  return {{"_target_", "nemo.collections.asr.modules.ConformerEncoder"},
          {"feat_in", c.mel.mels},
          {"feat_out", -1},
          {"n_layers", c.n_layer},
          {"d_model", c.n_embd},
          {"subsampling", "dw_striding"},
          {"subsampling_factor", c.subsampling},
          {"subsampling_conv_channels", c.subsampling_channels},
          {"causal_downsampling", c.causal},
          {"ff_expansion_factor", c.hidden() / c.n_embd},
          {"self_attention_model", "rel_pos"},
          {"n_heads", c.n_head},
          {"att_context_size", Yaml::array({c.left_context, c.right_context})},
          {"att_context_style",
           c.context_style == ContextStyle::chunked ? "chunked_limited" : "regular"},
          {"xscaling", c.xscaling},
          {"untie_biases", true},
          {"pos_emb_max_len", 5000},
          {"conv_kernel_size", c.conv_kernel},
          {"conv_norm_type", c.conv_norm == ConvNorm::batchnorm ? "batch_norm" : "layer_norm"},
          {"conv_context_size", c.causal ? Yaml("causal") : Yaml()},
          {"use_bias", true},
          {"dropout", c.dropout},
          {"dropout_pre_encoder", c.dropout},
          {"dropout_emb", 0.0},
          {"dropout_att", 0.0},
          {"stochastic_depth_drop_prob", c.stochastic_depth},
          {"stochastic_depth_mode", "linear"},
          {"stochastic_depth_start_layer", 1}};
}

/// Data that NeMo's user fills in; transcription reads one key of validation_ds.
Yaml data_of(const NemoModel& model, bool training) {
  Yaml data{{"manifest_filepath", nullptr},
            {"sample_rate", model.config.mel.sample_rate},
            {"batch_size", 16},
            {"shuffle", training},
            {"use_start_end_token", false}};
  if (model.tokenizer.empty()) data["labels"] = model.labels;
  return data;
}

}  // namespace

std::string nemo_piece_list(const std::string& tokenizer) {
  constexpr std::string_view kModel = "tokenizer.model";
  CHOIR_CHECK(tokenizer.ends_with(kModel), "a tokenizer '{}'", tokenizer);
  return tokenizer.substr(0, tokenizer.size() - kModel.size()) + "vocab.txt";
}

std::string nemo_description(const NemoModel& model) {
  const FastConformerConfig& c = model.config;
  require_nemo(c);
  const bool pieces = !model.tokenizer.empty();
  Yaml yaml{{"target", pieces ? "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE"
                              : "nemo.collections.asr.models.ctc_models.EncDecCTCModel"},
            {"nemo_version", "2.5.0"},
            {"sample_rate", c.mel.sample_rate}};
  yaml["train_ds"] = data_of(model, true);
  yaml["validation_ds"] = data_of(model, false);
  if (pieces)
    yaml["tokenizer"] = {{"dir", "tokenizer"},
                         {"type", "bpe"},
                         {"model_path", "nemo:" + model.tokenizer},
                         {"vocab_path", "nemo:" + nemo_piece_list(model.tokenizer)}};
  yaml["preprocessor"] = features_of(c);
  if (c.augment.time_masks + c.augment.frequency_masks > 0)
    yaml["spec_augment"] = augmentation_of(c.augment);
  yaml["encoder"] = encoder_of(c);
  yaml["decoder"] = {{"_target_", "nemo.collections.asr.modules.ConvASRDecoder"},
                     {"feat_in", c.n_embd},
                     {"num_classes", c.vocab_size},
                     {"vocabulary", model.labels}};
  std::string text;
  put_yaml(text, yaml, "");
  return text;
}

}  // namespace choir
