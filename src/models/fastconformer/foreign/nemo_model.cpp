#include "src/models/fastconformer/foreign/nemo.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "choir/core/error.hpp"
#include "src/deck/key_reader.hpp"

namespace choir {
namespace {

const nlohmann::json kNothing = nlohmann::json::object();

const nlohmann::json& section_of(const nlohmann::json& yaml, const char* name) {
  const auto found = yaml.find(name);
  return found != yaml.end() && found->is_object() ? *found : kNothing;
}

void read_context(KeyReader& keys, FastConformerConfig& c) {
  const std::string style = keys.text("att_context_style", "regular");
  if (style == "chunked_limited")
    c.context_style = ContextStyle::chunked;
  else if (style != "regular")
    keys.problem("att_context_style", "only regular and chunked_limited are supported");
  keys.harmless({"att_context_probs"});
  const nlohmann::json* size = keys.value("att_context_size");
  if (size == nullptr) return;
  // Several contexts were trained in turn; NeMo itself uses the first.
  if (size->is_array() && !size->empty() && size->front().is_array()) size = &size->front();
  const auto whole = [](const nlohmann::json& n) { return n.is_number_integer() && n >= -1; };
  if (!size->is_array() || size->size() != 2 || !whole((*size)[0]) || !whole((*size)[1]))
    return keys.problem("att_context_size", "two numbers of frames of at least -1 are expected");
  c.left_context = (*size)[0].get<std::int64_t>();
  c.right_context = (*size)[1].get<std::int64_t>();
}

void read_convolution(KeyReader& keys, FastConformerConfig& c) {
  c.conv_kernel = keys.whole("conv_kernel_size", 31, 1);
  const std::string norm = keys.text("conv_norm_type", "batch_norm");
  if (norm == "batch_norm" || norm == "layer_norm")
    c.conv_norm = norm == "batch_norm" ? ConvNorm::batchnorm : ConvNorm::layernorm;
  else
    keys.problem("conv_norm_type", "only batch_norm and layer_norm are supported");
  c.causal = keys.flag("causal_downsampling", false);
  const nlohmann::json* context = keys.value("conv_context_size");
  const bool causal = context != nullptr && *context == "causal";
  if (context != nullptr && !causal)
    keys.problem("conv_context_size", "only null and causal are supported");
  if (causal != c.causal)
    keys.problem("conv_context_size",
                 "causal convolutions require causal_downsampling = true, and the reverse");
}

void read_encoder(NemoModel& model, KeyReader& keys) {
  FastConformerConfig& c = model.config;
  keys.harmless({"_target_", "feat_out", "pos_emb_max_len", "subsampling_conv_chunking_factor",
                 "sync_max_audio_length", "use_pytorch_sdpa", "use_pytorch_sdpa_backends",
                 "dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att",
                 "stochastic_depth_drop_prob", "stochastic_depth_mode",
                 "stochastic_depth_start_layer", "reduction_position", "reduction_factor",
                 "global_tokens_spacing", "global_attn_separate"});
  c.n_layer = keys.needed("n_layers");
  c.n_embd = keys.needed("d_model");
  c.n_head = keys.whole("n_heads", 4, 1);
  c.ffn_width = c.n_embd * keys.whole("ff_expansion_factor", 4, 1);
  c.subsampling = keys.whole("subsampling_factor", 4, 1);
  // In NeMo -1 means d_model.
  const nlohmann::json* channels = keys.value("subsampling_conv_channels");
  const bool as_model = channels == nullptr || *channels == -1;
  c.subsampling_channels =
      as_model ? c.n_embd : keys.whole("subsampling_conv_channels", c.n_embd, 1);
  keys.only("subsampling", "dw_striding", "it has no depthwise convolutions");
  keys.only("self_attention_model", "rel_pos", "it has positions of another kind");
  keys.only("untie_biases", true, "all blocks share the biases of positions");
  keys.only("reduction", nullptr, "frames are reduced once more");
  keys.only("global_tokens", 0, "some frames see all others");
  c.xscaling = keys.flag("xscaling", true);
  model.biases = keys.flag("use_bias", true);
  c.mel.mels = keys.needed("feat_in");
  read_context(keys, c);
  read_convolution(keys, c);
}

void read_features(NemoModel& model, KeyReader& keys) {
  ops::MelOptions& mel = model.config.mel;
  keys.harmless({"_target_", "pad_to", "pad_value", "nb_augmentation_prob", "nb_max_freq",
                 "use_grads", "rng", "stft_exact_pad", "stft_conv", "exact_pad"});
  mel.sample_rate = keys.whole("sample_rate", 16000, 1);
  const auto samples = [&](const char* seconds, const char* count, double otherwise) {
    if (keys.has(count)) return keys.whole(count, 1);
    return static_cast<std::int64_t>(
        std::llround(keys.real(seconds, otherwise) * static_cast<double>(mel.sample_rate)));
  };
  mel.window = samples("window_size", "n_window_size", 0.02);
  mel.hop = samples("window_stride", "n_window_stride", 0.01);
  // If only one spelling is given, the other is null.
  keys.harmless({"window_size", "window_stride", "n_window_size", "n_window_stride"});
  mel.fft = keys.whole("n_fft", 0);
  for (std::int64_t two = 1; mel.fft == 0 && two < 65536; two *= 2)
    if (two >= mel.window) mel.fft = two;
  if (keys.whole("features", 64) != mel.mels)
    keys.problem("features", fmt::format("encoder.feat_in is {}", mel.mels));
  const bool plain = keys.knows("preemph") && !keys.has("preemph");
  mel.preemphasis = plain ? 0 : keys.real("preemph", 0.97);
  const nlohmann::json* dither = keys.value("dither");
  mel.dither = dither != nullptr && dither->is_number() ? dither->get<double>() : 1e-5;
  keys.harmless({"preemph"});
  mel.high = keys.has("highfreq") ? keys.real("highfreq", 0) : 0;
  keys.harmless({"highfreq"});
  const nlohmann::json* normalize = keys.value("normalize");
  const bool none = normalize == nullptr || *normalize == "NA" || *normalize == "None";
  if (!none && *normalize != "per_feature")
    keys.problem("normalize", "only per_feature and null are supported");
  model.config.normalise = !none;
  keys.only("window", "hann", "spectra have another window");
  keys.only("frame_splicing", 1, "frames are stacked");
  keys.only("log", true, "features are no logarithms");
  keys.only("mag_power", 2.0, "features are no powers");
  keys.only("lowfreq", 0, "filters begin elsewhere");
  keys.only("mel_norm", "slaney", "filters are scaled in another way");
  keys.only("log_zero_guard_type", "add", "small powers are cut off");
  const nlohmann::json* guard = keys.value("log_zero_guard_value");
  if (guard != nullptr && (!guard->is_number() || *guard != 0x1p-24))
    keys.problem("log_zero_guard_value", "only 2^-24 is supported");
}

/// Reads SpecAugment. It changes only the training, so what a deck cannot express is left out and
/// named. A description without it has no masks.
void read_augmentation(NemoModel& model, const nlohmann::json& section) {
  ops::SpecAugment& masks = model.config.augment;
  masks.time_masks = masks.frequency_masks = 0;
  const std::set<std::string> harmless{"_target_", "rng", "mask_value", "use_vectorized_code",
                                       "use_numba_spec_augment"};
  for (const auto& [key, value] : section.items()) {
    const auto take = [&](std::int64_t& to, std::int64_t most) {
      const bool legal = value.is_number_integer() && value >= 0 && value <= most;
      if (legal) to = value.get<std::int64_t>();
      return legal;
    };
    const auto take_width = [&] {
      const bool fraction = value.is_number_float() && value >= 0.0 && value < 1.0;
      const bool frames = value.is_number_integer() && value >= 1;
      if (fraction || frames) masks.time_width = value.get<double>();
      return fraction || frames;
    };
    if (value.is_null() || harmless.contains(key)) continue;
    if ((key == "rect_masks" || key == "rect_time" || key == "rect_freq") &&
        section.value("rect_masks", nlohmann::json(0)) == 0)
      continue;
    const bool taken = key == "freq_masks"   ? take(masks.frequency_masks, 1000)
                       : key == "time_masks" ? take(masks.time_masks, 1000)
                       : key == "freq_width" ? take(masks.frequency_width, 1024)
                                             : key == "time_width" && take_width();
    if (!taken)
      model.left_out.push_back(fmt::format("spec_augment.{} = {} (no key of a deck has this value)",
                                           key, dumped(value)));
  }
}

/// A class of NeMo without a CTC head, by the end of its name or by a section that it has.
struct OtherClass {
  const char *name, *section, *is;
};
constexpr std::array kOtherClasses{
    OtherClass{"EncDecMultiTaskModel", "transf_decoder",
               "an encoder with an attention decoder (Canary)"},
    OtherClass{"EncDecTransfModelBPE", "transf_decoder", "an encoder with an attention decoder"},
    OtherClass{"EncDecRNNTModel", "joint", "a transducer (RNN-T or TDT)"},
    OtherClass{"EncDecRNNTBPEModel", "joint", "a transducer (RNN-T or TDT)"},
    OtherClass{"EncDecRNNTBPEEOUModel", "joint", "a transducer that also marks ends of utterances"},
    OtherClass{"EncDecSpeakerLabelModel", "", "a model of speakers"},
    OtherClass{"EncDecClassificationModel", "", "a classifier of audio"},
    OtherClass{"EncDecRegressionModel", "", "a model of one number for a recording"},
    OtherClass{"EncDecFrameClassificationModel", "", "a classifier of frames"},
    OtherClass{"SortformerEncLabelModel", "sortformer_modules",
               "a model that tells speakers apart"},
    OtherClass{"SpeechEncDecSelfSupervisedModel", "loss_list", "a self-supervised encoder"},
    OtherClass{"EncDecDenoiseMaskedTokenPredModel", "", "a self-supervised encoder"},
    OtherClass{"EncDecMaskedTokenPredModel", "", "a self-supervised encoder"},
    OtherClass{"SALM", "", "a language model with audio input"},
    OtherClass{"SLUIntentSlotBPEModel", "", "a model of intents"}};

/// Refuses a description of another class by its name, before any key of it is judged.
void require_ctc(const nlohmann::json& yaml, const std::string& source) {
  const bool hybrid = !section_of(section_of(yaml, "aux_ctc"), "decoder").empty();
  if (hybrid || !yaml.is_object()) return;
  const nlohmann::json target = yaml.value("target", nlohmann::json());
  const std::string path = target.is_string() ? target.get<std::string>() : "";
  const std::string name = path.substr(path.rfind('.') + 1);
  const auto refuse = [&](const OtherClass& other) {
    throw DataError(
        fmt::format("'{}': model_config.yaml describes {}{}, which has no CTC head", source,
                    name.empty() ? "" : "the class " + name + ", ", other.is),
        "import a CTC model (EncDecCTCModelBPE), or a hybrid model of transducer and CTC "
        "(EncDecHybridRNNTCTCBPEModel), whose CTC head is imported");
  };
  for (const OtherClass& other : kOtherClasses)
    if (name == other.name) refuse(other);
  const auto knows = [&](const char* section) {
    return section[0] != '\0' && !section_of(yaml, section).empty();
  };
  for (const OtherClass& other : kOtherClasses)
    if (knows(other.section)) refuse(other);
}

/// The texts of the symbols: the vocabulary of the decoder or, if that is missing in a model of
/// characters, the labels of the model or of its training data. An array, which may be empty.
nlohmann::json labels_of(const nlohmann::json& yaml, const nlohmann::json& decoder) {
  const bool characters = section_of(yaml, "tokenizer").empty();
  const nlohmann::json& model = characters ? yaml : kNothing;
  const nlohmann::json& data = section_of(model, "train_ds");
  for (const auto& [section, key] :
       {std::pair{&decoder, "vocabulary"}, {&model, "labels"}, {&data, "labels"}})
    if (const auto found = section->find(key);
        found != section->end() && found->is_array() && !found->empty())
      return *found;
  return nlohmann::json::array();
}

void read_head(NemoModel& model, const nlohmann::json& yaml, std::vector<std::string>& problems) {
  // A hybrid model has its CTC head beside the transducer.
  const nlohmann::json& beside = section_of(section_of(yaml, "aux_ctc"), "decoder");
  const bool hybrid = !beside.empty();
  const nlohmann::json& decoder = hybrid ? beside : section_of(yaml, "decoder");
  model.head = hybrid ? "ctc_decoder." : "decoder.";
  const nlohmann::json classes = decoder.value("num_classes", nlohmann::json());
  const nlohmann::json words = labels_of(yaml, decoder);
  if (classes.is_number_integer() && classes > 0)
    model.config.vocab_size = classes.get<std::int64_t>();
  else if (!words.empty())
    model.config.vocab_size = std::ssize(words);
  else
    problems.emplace_back(
        "decoder.num_classes is not a number of symbols, so that there is no CTC head to import");
  if (std::all_of(words.begin(), words.end(), [](const auto& word) { return word.is_string(); }))
    model.labels = words.get<std::vector<std::string>>();
  const nlohmann::json path = section_of(yaml, "tokenizer").value("model_path", nlohmann::json());
  constexpr std::string_view kInside = "nemo:";
  if (path.is_string() && path.get<std::string>().starts_with(kInside))
    model.tokenizer = path.get<std::string>().substr(kInside.size());
}

/// Names after "encoder.blocks.N." here and after "encoder.layers.N." in NeMo, without ".weight"
/// and
/// ".bias".
constexpr std::array<std::pair<const char*, const char*>, 15> kBlock{{
    {"feed_forward_1_norm", "norm_feed_forward1"},
    {"feed_forward_1.input", "feed_forward1.linear1"},
    {"feed_forward_1.output", "feed_forward1.linear2"},
    {"attention_norm", "norm_self_att"},
    {"attention.position", "self_attn.linear_pos"},
    {"attention.output", "self_attn.linear_out"},
    {"convolution_norm", "norm_conv"},
    {"convolution.input", "conv.pointwise_conv1"},
    {"convolution.depthwise", "conv.depthwise_conv"},
    {"convolution.norm", "conv.batch_norm"},
    {"convolution.output", "conv.pointwise_conv2"},
    {"feed_forward_2_norm", "norm_feed_forward2"},
    {"feed_forward_2.input", "feed_forward2.linear1"},
    {"feed_forward_2.output", "feed_forward2.linear2"},
    {"final_norm", "norm_out"},
}};

/// "blocks.3.x.weight" -> "3", "x", ".weight".
struct BlockName {
  std::string number, layer, end;

  static BlockName of(const std::string& name) {
    constexpr std::string_view kBegin = "encoder.blocks.";
    const std::size_t dot = name.find('.', kBegin.size());
    std::size_t end = name.rfind('.');
    // The biases of heads are names of their own.
    if (name.ends_with("query_bias") || name.ends_with("position_bias")) end = name.size();
    return {name.substr(kBegin.size(), dot - kBegin.size()), name.substr(dot + 1, end - dot - 1),
            name.substr(end)};
  }
};

std::string name_in_layer(const std::string& layer) {
  for (const auto& [own, there] : kBlock)
    if (layer == own) return there;
  if (layer == "attention.query_bias") return "self_attn.pos_bias_u";
  if (layer == "attention.position_bias") return "self_attn.pos_bias_v";
  CHOIR_CHECK(false, "a layer {} of a FastConformer", layer);
}

/// True for layers that have a bias whatever use_bias is: norms.
bool always_has_bias(const std::string& layer) {
  return layer.ends_with("norm");
}

}  // namespace

void transpose(std::byte* matrix, std::int64_t rows, std::int64_t columns, std::size_t width) {
  const std::vector<std::byte> from(matrix,
                                    matrix + static_cast<std::size_t>(rows * columns) * width);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      std::memcpy(matrix + static_cast<std::size_t>(c * rows + r) * width,
                  from.data() + static_cast<std::size_t>(r * columns + c) * width, width);
}

Shape without_ones(const Shape& shape) {
  Shape result;
  for (int d = 0; d < shape.rank(); ++d)
    if (shape[d] != 1) result.append(shape[d]);
  return result;
}

namespace {

std::string subsampling_name(const std::string& name) {
  constexpr std::string_view kBegin = "encoder.subsampling.";
  const std::string rest = name.substr(kBegin.size());
  const std::string end = rest.substr(rest.rfind('.'));
  if (rest.starts_with("output.")) return "encoder.pre_encode.out" + end;
  if (rest.starts_with("conv.")) return "encoder.pre_encode.conv.0" + end;
  // A stage has a depthwise convolution, a pointwise one and a ReLU.
  const bool depthwise = rest.starts_with("depthwise.");
  const int stage = rest[rest.find('.') + 1] - '0';
  return fmt::format("encoder.pre_encode.conv.{}{}", 3 * stage - (depthwise ? 1 : 0), end);
}

/// NeMo's shape of rows of the tensor `own`, of which `shape` is ours: convolutions have dims of
/// channels and taps.
Shape shape_in_nemo(const std::string& own, const Shape& shape) {
  const auto is = [&](std::string_view layer) { return own.find(layer) != std::string::npos; };
  if (!own.ends_with(".weight")) return shape;
  if (is("subsampling.conv.") || is("subsampling.depthwise.")) return {shape[0], 1, 3, 3};
  if (is("subsampling.pointwise.")) return {shape[0], shape[1], 1, 1};
  if (is("convolution.depthwise.")) return {shape[0], 1, shape[1]};
  const bool of_width_1 = is("convolution.input.") || is("convolution.output.") || is("head.");
  return of_width_1 ? Shape{shape[0], shape[1], 1} : shape;
}

}  // namespace

NemoModel nemo_model_of(const nlohmann::json& yaml, const std::string& source, bool allow_unknown) {
  require_ctc(yaml, source);
  NemoModel model;
  KeyReader encoder(section_of(yaml, "encoder"), source, "encoder.");
  read_encoder(model, encoder);
  KeyReader features(section_of(yaml, "preprocessor"), source, "preprocessor.");
  read_features(model, features);
  std::vector<std::string> problems = encoder.problems(allow_unknown);
  for (std::string& problem : features.problems(allow_unknown))
    problems.push_back(std::move(problem));
  read_head(model, yaml, problems);
  read_augmentation(model, section_of(yaml, "spec_augment"));
  refuse_problems(source, problems);
  return model;
}

std::vector<NemoPart> nemo_parts(const NemoModel& model, const ParameterSet& parameters) {
  std::vector<NemoPart> parts;
  for (const Parameter* p : parameters.all()) {
    const std::string& own = p->name;
    const auto add = [&](const std::string& name, std::int64_t first, std::int64_t rows) {
      Shape shape = p->shape;
      shape[0] = rows;
      parts.push_back({own, name, first, rows, shape_in_nemo(own, shape), 0});
    };
    if (own.starts_with("head.")) {
      add(model.head + "decoder_layers.0" + own.substr(4), 0, p->shape[0]);
    } else if (own.starts_with("encoder.subsampling.")) {
      add(subsampling_name(own), 0, p->shape[0]);
      if (own.ends_with("output.weight")) parts.back().channels = model.config.subsampling_channels;
    } else {
      const BlockName name = BlockName::of(own);
      if (!model.biases && name.end == ".bias" && !always_has_bias(name.layer)) continue;
      const std::string layer = "encoder.layers." + name.number + ".";
      if (name.layer != "attention.qkv") {
        add(layer + name_in_layer(name.layer) + name.end, 0, p->shape[0]);
        continue;
      }
      const std::int64_t third = p->shape[0] / 3;
      for (int i = 0; i < 3; ++i)
        add(fmt::format("{}self_attn.linear_{}{}", layer, "qkv"[i], name.end), i * third, third);
    }
  }
  return parts;
}

std::string nemo_statistic(const std::string& norm, bool mean) {
  const BlockName name = BlockName::of(norm + ".");
  return fmt::format("encoder.layers.{}.conv.batch_norm.{}", name.number,
                     mean ? "running_mean" : "running_var");
}

std::vector<std::string> nemo_zeros(const NemoModel& model, const ParameterSet& parameters) {
  std::vector<std::string> patterns;
  if (model.biases) return patterns;
  for (const Parameter* p : parameters.all()) {
    if (!p->name.starts_with("encoder.blocks.0.")) continue;
    const BlockName name = BlockName::of(p->name);
    if (name.end == ".bias" && !always_has_bias(name.layer))
      patterns.push_back("encoder.blocks.*." + name.layer + name.end);
  }
  return patterns;
}

}  // namespace choir
