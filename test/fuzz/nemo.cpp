// Fuzzes model_config.yaml of NeMo: the input must be refused or describe a model.
#include "src/models/fastconformer/foreign/nemo.hpp"
#include "choir/models/family.hpp"
#include "src/core/yaml_reader.hpp"
#include "src/models/fastconformer/fastconformer.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

const std::string kEncoder =
    "encoder:\n  n_layers: 1\n  d_model: 8\n  n_heads: 2\n  feat_in: 16\n  subsampling_factor: 4\n"
    "  subsampling_conv_channels: -1\n  att_context_size: [[70, 13], [-1, -1]]\n"
    "  conv_norm_type: layer_norm\n  xscaling: false\n  use_bias: false\n";
const std::string kFeatures =
    "preprocessor:\n  features: 16\n  window_size: 0.025\n  normalize: NA\n  highfreq: null\n";

}  // namespace

std::vector<std::string> seeds() {
  return {kEncoder + kFeatures +
              "decoder:\n  num_classes: 3\n  vocabulary:\n  - 'it''s'\n  - \"\\u2581\"\n",
          kEncoder + kFeatures +
              "aux_ctc:\n  decoder: {num_classes: -1, vocabulary: [a, 'b', \"c\"]}\n"
              "tokenizer:\n  model_path: nemo:0f_tokenizer.model\n",
          "a:\n- - 1\n  - b: ~\n    c: a text\n      on two lines\n\n      and three\nd: \"\\x41 "
          "\\\n  b\"\n"};
}

void try_input(std::string_view input) {
  accepted([&] {
    const nlohmann::json yaml = read_yaml(std::string(input), "fuzz");
    if (!yaml.is_object()) return;
    const NemoModel model = nemo_model_of(yaml, "fuzz", false);
    // Only small models are created from their description.
    const FastConformerConfig& c = model.config;
    if (c.n_layer > 4 || c.n_embd > 64 || c.ffn_width > 1024 || c.vocab_size > 1024 ||
        c.mel.mels > 256 || c.subsampling_channels > 256 || c.n_head > 64 || c.n_head < 1)
      return;
    ParameterSet parameters;
    const FastConformer described(c, parameters);
    for (const NemoPart& part : nemo_parts(model, parameters))
      require(!part.name.empty() && part.rows > 0, "a part of nothing");
  });
}

}  // namespace choir::fuzz
