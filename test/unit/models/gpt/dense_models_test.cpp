// Tiny models of Gemma 1, 2 and 3, Granite, OLMo 2 and 3, GPT-NeoX, and Phi-3 without and with
// longrope, with random weights, against numbers that transformers 5.24 and an implementation on
// the autograd of torch gave in fp64 to 1e-14: loss, gradients and five steps of AdamW. A mistake
// in any option changes the numbers: the smallest known one, the erf form of GELU, changes logits
// by 6e-4 and the loss by 2e-5.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "choir/run/model_instance.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "src/models/gpt/foreign/peft.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/store/gguf/gguf.hpp"
#include "src/store/tensor_file.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/models/gpt/five_steps.hpp"

namespace choir {
namespace {

/// The type and the dialects of a family; llama.cpp has no windows of Phi-3.
struct DenseFamily {
  std::string_view type;
  Dialect hf;
  std::optional<Dialect> gguf;
};

struct DenseGolden {
  std::string name;
  DenseFamily family;
  std::string version_4, version_5;   ///< config.json of both versions of transformers
  double masked_loss, masked_norm;    ///< if some positions have no target
  std::vector<double> losses, norms;  ///< before each step, and after the last
  double embedding_norm;              ///< of its gradient
};

const std::vector<DenseGolden>& dense_goldens() {
  static const std::vector<DenseGolden> kAll{
      {"gemma",
       {"gemma", Dialect::hf_llama, Dialect::gguf_qwen},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "model_type": "gemma", "head_dim": 16, "rms_norm_eps": 1e-06, "attention_bias": false,
        "rope_theta": 10000.0, "hidden_act": "gelu"})",
       R"({"attention_bias": false, "head_dim": 16, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 64, "model_type":
        "gemma", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 10000.0, "rope_type":
        "default"}, "tie_word_embeddings": true, "use_bidirectional_attention": null,
        "vocab_size": 64})",
       4.349268071916794,
       5.204043545587,
       {4.540512624389143, 3.972784130896146, 3.5704603256800285, 3.275444097679988,
        3.0059732752310913, 2.7907800677911503},
       {4.098040021299068, 3.5872869945999746, 2.8404796756793984, 2.7602905930444632,
        2.6565552960662564},
       3.5043647831816744},
      {"gemma2",
       {"gemma2", Dialect::hf_post, Dialect::gguf_qwen},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "model_type": "gemma2", "head_dim": 16, "rms_norm_eps": 1e-06, "attention_bias": false,
        "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh", "hidden_activation":
        "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 5,
        "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0})",
       R"({"attention_bias": false, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0,
        "head_dim": 16, "hidden_act": "gelu_pytorch_tanh", "hidden_activation":
        "gelu_pytorch_tanh", "hidden_size": 32, "intermediate_size": 40, "layer_types":
        ["sliding_attention", "full_attention"], "max_position_embeddings": 64, "model_type":
        "gemma2", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta":
        10000.0, "rope_type": "default"}, "sliding_window": 5, "tie_word_embeddings": true,
        "use_bidirectional_attention": null, "vocab_size": 64})",
       4.508516892610732,
       5.700803276804764,
       {4.570796259612527, 3.988486315633989, 3.604129524910107, 3.328429490354944,
        3.095744797120601, 2.8985336621162254},
       {4.172750143399972, 2.9046172374950427, 2.02924464685479, 1.8774668764598712,
        1.6624367580388302},
       3.4687946001260546},
      {"gemma3",
       {"gemma3_text", Dialect::hf_post, Dialect::gguf_qwen},
       R"({"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 6,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "model_type": "gemma3_text", "head_dim": 16, "rms_norm_eps": 1e-06, "attention_bias":
        false, "rope_theta": 1000000.0, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 24, "sliding_window": 5, "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "attn_logit_softcapping": null, "final_logit_softcapping": null})",
       R"({"_sliding_window_pattern": 6, "attention_bias": false, "attn_logit_softcapping": null,
        "final_logit_softcapping": null, "head_dim": 16, "hidden_activation":
        "gelu_pytorch_tanh", "hidden_size": 16, "intermediate_size": 24, "layer_types":
        ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
        "sliding_attention", "full_attention"], "max_position_embeddings": 64, "model_type":
        "gemma3_text", "num_attention_heads": 2, "num_hidden_layers": 6, "num_key_value_heads":
        1, "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-06, "rope_parameters":
        {"full_attention": {"factor": 8.0, "rope_theta": 1000000.0, "rope_type": "linear"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}, "sliding_window":
        5, "sliding_window_pattern": 6, "tie_word_embeddings": true,
        "use_bidirectional_attention": false, "vocab_size": 64})",
       4.252959899723719,
       2.8345682994682972,
       {4.28777374318487, 4.008603899434151, 3.74901526827915, 3.5936129337132012,
        3.454725698837472, 3.339907999563195},
       {2.9893440994705247, 2.7708557848313706, 2.1915552378914795, 2.1343064718345452,
        1.922085077171509},
       2.094126783717986},
      {"granite",
       {"granite", Dialect::hf_llama, Dialect::gguf_llama},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "model_type": "granite", "rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta":
        10000.0, "rope_scaling": null, "attention_bias": false, "mlp_bias": false,
        "tie_word_embeddings": true, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.03125, "logits_scaling": 8.0})",
       R"({"attention_bias": false, "attention_multiplier": 0.03125, "embedding_multiplier": 12.0,
        "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "logits_scaling": 8.0,
        "max_position_embeddings": 64, "mlp_bias": false, "model_type": "granite",
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta":
        10000.0, "rope_type": "default"}, "tie_word_embeddings": true, "vocab_size": 64})",
       4.213269363382012,
       0.24096558167490573,
       {4.2351244486005175, 4.209594912583029, 4.18405920633314, 4.158497830884714,
        4.132883516686392, 4.10719206991004},
       {0.19968959776434378, 0.1994500745512071, 0.1991711255542405, 0.19885637447995178,
        0.1985148189831189},
       0.19005793269469945},
      {"olmo2",
       {"olmo2", Dialect::hf_post, Dialect::gguf_qwen},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "model_type": "olmo2", "rms_norm_eps": 1e-06, "hidden_act": "silu", "rope_theta":
        500000.0, "rope_scaling": null, "attention_bias": false, "tie_word_embeddings": false})",
       R"({"attention_bias": false, "hidden_act": "silu", "hidden_size": 32, "intermediate_size":
        40, "max_position_embeddings": 64, "model_type": "olmo2", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": false, "vocab_size": 64})",
       5.17312497671916,
       3.9677469106250505,
       {5.022325495161395, 4.309053180839183, 3.7576694571624705, 3.3003114674866754,
        2.892667377072437, 2.5252855035690507},
       {3.286049768528512, 2.7369648236758266, 2.3385653743053942, 2.220322022166382,
        2.133686413452939},
       0.6511488936050515},
      {"olmo3",
       {"olmo3", Dialect::hf_post, Dialect::gguf_qwen},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "model_type": "olmo3", "rms_norm_eps": 1e-06, "hidden_act": "silu", "rope_theta":
        500000.0, "attention_bias": false, "tie_word_embeddings": false, "sliding_window": 5,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
        "full_attention"], "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
        "attention_factor": 1.138629436111989, "beta_fast": 4, "beta_slow": 1,
        "original_max_position_embeddings": 16}})",
       R"({"attention_bias": false, "hidden_act": "silu", "hidden_size": 32, "intermediate_size":
        40, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
        "full_attention"], "max_position_embeddings": 64, "model_type": "olmo3",
        "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention": {"attention_factor":
        1.138629436111989, "beta_fast": 4, "beta_slow": 1, "factor": 4.0,
        "original_max_position_embeddings": 16, "rope_theta": 500000.0, "rope_type": "yarn"},
        "sliding_attention": {"rope_theta": 500000.0, "rope_type": "default"}},
        "sliding_window": 5, "tie_word_embeddings": false, "vocab_size": 64})",
       5.213816485421246,
       4.100521107070587,
       {5.078907781896467, 4.110657963233834, 3.4441409315727993, 2.9102155002860655,
        2.4430037939887566, 2.051883987477972},
       {3.4442401946699834, 3.0012895322874216, 2.70105327722943, 2.4633106212948177,
        2.2714835475983874},
       0.6110916458980693},
      {"gpt_neox",
       {"gpt_neox", Dialect::hf_neox, Dialect::gguf_gpt2},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 64, "model_type": "gpt_neox",
        "layer_norm_eps": 1e-05, "hidden_act": "gelu", "rotary_pct": 0.25, "rotary_emb_base":
        10000, "use_parallel_residual": true, "attention_bias": true, "tie_word_embeddings":
        false})",
       R"({"attention_bias": true, "hidden_act": "gelu", "hidden_size": 32, "intermediate_size":
        64, "layer_norm_eps": 1e-05, "max_position_embeddings": 64, "model_type": "gpt_neox",
        "num_attention_heads": 2, "num_hidden_layers": 2, "rope_parameters":
        {"partial_rotary_factor": 0.25, "rope_theta": 10000, "rope_type": "default"},
        "tie_word_embeddings": false, "use_parallel_residual": true, "vocab_size": 64})",
       4.319676429605342,
       3.22328321704072,
       {4.4112258746844155, 3.72832515111788, 3.179496054530251, 2.7572134065653993,
        2.4019911732341352, 2.0828530537426393},
       {2.8162397756020914, 2.25915662531117, 2.24261662712079, 1.823908750048286,
        1.7363034266260648},
       0.8351520046324767},
      {"phi3",
       {"phi3", Dialect::hf_phi3, {}},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "model_type": "phi3", "rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta":
        10000.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64,
        "rope_scaling": null, "sliding_window": 7, "tie_word_embeddings": true,
        "attention_bias": false})",
       R"({"attention_bias": false, "hidden_act": "silu", "hidden_size": 32, "intermediate_size":
        40, "max_position_embeddings": 64, "model_type": "phi3", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "original_max_position_embeddings":
        64, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05, "rope_parameters":
        {"partial_rotary_factor": 0.75, "rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 7, "tie_word_embeddings": true, "vocab_size": 64})",
       5.752994861352136,
       6.432341140593198,
       {5.610634755428331, 4.728375569516208, 4.073463165975869, 3.619979489481728,
        3.172059060154984, 2.7666812587360705},
       {5.755534492429528, 4.995385840904783, 3.439973140442853, 4.355392414030831,
        3.2890819995626335},
       3.9989325104571245},
      {"phi3_long",
       {"phi3", Dialect::hf_phi3, Dialect::gguf_phi3},
       R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "model_type": "phi3", "rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta":
        10000.0, "original_max_position_embeddings": 8, "rope_scaling": {"type": "su",
        "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 1.75, 3.0, 4.5]},
        "sliding_window": 64, "tie_word_embeddings": false, "attention_bias": false})",
       R"({"attention_bias": false, "hidden_act": "silu", "hidden_size": 32, "intermediate_size":
        40, "max_position_embeddings": 64, "model_type": "phi3", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "original_max_position_embeddings": 8,
        "rms_norm_eps": 1e-05, "rope_parameters": {"long_factor": [1.0, 1.75, 3.0, 4.5],
        "original_max_position_embeddings": 8, "partial_rotary_factor": 1.0, "rope_theta":
        10000.0, "rope_type": "longrope", "short_factor": [1.0, 1.25, 1.5, 2.0], "type":
        "longrope"}, "sliding_window": 64, "tie_word_embeddings": false, "vocab_size": 64})",
       4.691979894158262,
       5.729791930767134,
       {4.6697381202055315, 3.9912523244061653, 3.423055390664379, 3.01427301216192,
        2.6530550755450113, 2.340567974165777},
       {4.556470232936619, 3.5407865050439287, 2.682910971028632, 2.5017133568301855,
        2.2105065979569414},
       1.44625089611812},
  };
  return kAll;
}

const DenseGolden& golden_of(std::string_view name) {
  const auto& all = dense_goldens();
  return *std::ranges::find(all, name, &DenseGolden::name);
}
ForeignModel model_of(std::string_view name) {
  return model_from_hf(golden_of(name).version_4, std::string(name), false);
}
GptConfig config_of(std::string_view name) {
  return model_of(name).config;
}

const std::vector<std::int32_t> kIds{4,  58, 46, 44, 62, 43, 61, 28, 42, 28, 20,
                                     59, 40, 40, 24, 33, 47, 25, 59, 55, 53, 49,
                                     25, 17, 56, 31, 46, 8,  63, 36, 52, 63};
const std::vector<std::int32_t> kTargets{58, 46, 44, 62, 43, 61, 28, 42, 28, 20, 59,
                                         40, 40, 24, 33, 10, 25, 59, 55, 53, 49, 25,
                                         17, 56, 31, 46, 8,  63, 36, 52, 63, 60};
const std::vector<std::int32_t> kMasked{-1, -1, -1, 62, 43, 61, 28, 42, 28, 20, 59,
                                        40, 40, 24, 33, 10, 25, 59, 55, 53, 49, 25,
                                        17, 56, 31, -1, -1, -1, -1, -1, -1, -1};

class DenseModel {
 public:
  DenseModel(const DenseGolden& golden, const ForeignModel& model)
      : model_(model),
        mesh_(Mesh::planned(Layout(), 0, 1)),
        instance_({model_.config, precision_of("fp64"), 7, true}, device_, *mesh_,
                  std::size_t{64} << 20) {
    instance_.initialise(7);
    const auto path =
        std::filesystem::path(__FILE__).parent_path() / "golden" / "dense_models.safetensors";
    const auto weights = open_weights(path.string());
    FiniteCheck check;
    std::int64_t read = 0;
    const auto parts =
        tensor_parts(model_.config, described_parameters(model_.config), model_.dialect);
    for (Parameter& p : instance_.parameters().parameters())
      for (const TensorPart& part : parts)
        if (part.own == p.name && !part.repeated)
          read +=
              read_part(*weights, golden.name + "/" + part.name, part,
                        {0, p.shape[0], static_cast<std::byte*>(p.master.data), DType::f64}, check);
    for (const TensorEntry& entry : weights->tensors())
      if (entry.name.starts_with(golden.name + "/")) read -= entry.shape.count();
    EXPECT_EQ(read, 0) << "a tensor is not used, or twice";
  }

  /// The mean loss of rows of `tokens`, and its gradient.
  double loss(const std::vector<std::int32_t>& targets = kTargets, std::int64_t tokens = 16) {
    double counted = 0, sum = 0;
    for (const std::int32_t target : targets) counted += target >= 0 ? 1 : 0;
    instance_.pass().begin(Mode::train, {.batch = 32 / tokens, .tokens = tokens}, 0);
    const Tensor losses =
        instance_.as<Gpt>().loss(instance_.pass(), view(kIds), view(targets), 1 / counted);
    for (std::int64_t i = 0; i < losses.count(); ++i) sum += losses.as<double>()[i];
    for (const Bucket& bucket : instance_.parameters().buckets())
      instance_.storage().begin_gradients(instance_.stream(), bucket);
    instance_.as<Gpt>().backward(instance_.pass(), view(kIds));
    return sum / counted;
  }
  /// The norm of the gradient of one parameter, or of all.
  double gradient_norm(const std::string& name = {}) {
    double sum = 0;
    for (const Parameter& p : instance_.parameters().parameters())
      for (std::int64_t i = 0; (name.empty() || p.name == name) && i < p.local_count(); ++i)
        sum += p.gradient.as<double>()[i] * p.gradient.as<double>()[i];
    return std::sqrt(sum);
  }
  void step(int updates) { updates_.step(3e-3, updates); }

 private:
  static TensorView view(const std::vector<std::int32_t>& ids) {
    return {const_cast<std::int32_t*>(ids.data()), DType::i32, {std::ssize(ids)}};
  }
  ForeignModel model_;
  CpuDevice device_;
  std::unique_ptr<Mesh> mesh_;
  ModelInstance instance_;
  test::GoldenUpdates updates_{instance_, device_, test::GoldenUpdates::settings(0.1)};
};

TEST(DenseModels, LossGradientAndFiveSteps) {
  for (const DenseGolden& golden : dense_goldens())
    for (const std::string& config : {golden.version_4, golden.version_5}) {
      SCOPED_TRACE(golden.name);
      DenseModel model(golden, model_from_hf(config, golden.name, false));
      EXPECT_NEAR(model.loss(kMasked), golden.masked_loss, 1e-10);
      EXPECT_NEAR(model.gradient_norm(), golden.masked_norm, 1e-10);
      model.loss();
      EXPECT_NEAR(model.gradient_norm("embedding.tokens.weight"), golden.embedding_norm, 1e-10);
      test::expect_five_steps(model, golden.losses, golden.norms);
    }
}

TEST(DenseModels, DescriptionsGoOutAndInAgain) {
  for (const DenseGolden& golden : dense_goldens()) {
    const GptConfig in = config_of(golden.name);
    const GptConfig later = model_from_hf(golden.version_5, golden.name, false).config;
    const std::string out = hf_config(in, "float32", "");
    EXPECT_EQ(hf_config(later, "float32", ""), out) << golden.name;
    EXPECT_EQ(hf_config(model_from_hf(out, golden.name, false).config, "float32", ""), out);
    EXPECT_EQ(hf_type_of(in), golden.family.type);
    EXPECT_EQ(hf_dialect_of(in), golden.family.hf) << golden.name;
    if (golden.family.gguf) {
      EXPECT_EQ(gguf_dialect_of(in), *golden.family.gguf) << golden.name;
    }
  }
}

// The scaling of Gemma 3 is absent in its small models.
TEST(DenseModels, AnglesOfLocalLayersNeedNoScaling) {
  const std::string& scaled = golden_of("gemma3").version_4;
  const std::string key = R"("rope_scaling": {"rope_type": "linear", "factor": 8.0})";
  const std::size_t at = scaled.find(key);
  ASSERT_NE(at, std::string::npos);
  const std::string plain = std::string(scaled).replace(at, key.size(), R"("rope_scaling": null)");
  const GptConfig c = model_from_hf(plain, "gemma3", false).config;
  EXPECT_TRUE(check_model(c).empty());
  EXPECT_TRUE(c.kind_of(0).local);
  // Without windowed layers there are none of these angles.
  const std::string full = R"("full_attention")";
  std::string types = full;
  for (int layer = 1; layer < 6; ++layer) types += ", " + full;
  const std::string no_windows =
      std::string(scaled).replace(at, key.size(), R"("layer_types": [)" + types + "]");
  const GptConfig bare = model_from_hf(no_windows, "gemma3", false).config;
  EXPECT_TRUE(check_model(bare).empty());
  EXPECT_EQ(bare.rope_local_theta, 0);
  const std::string out = hf_config(bare, "float32", "");
  EXPECT_EQ(hf_config(model_from_hf(out, "gemma3", false).config, "float32", ""), out);
}

// Rows of at most the original length have the short factors, if the run has no longer ones. A
// program of numpy in fp64, which also gives the loss of the long factors to the last bit, computed
// this loss.
TEST(DenseModels, LongropeHasTheFactorsOfItsBlockSize) {
  const DenseGolden& golden = golden_of("phi3_long");
  ForeignModel model = model_of("phi3_long");
  model.config.block_size = 8;
  EXPECT_NEAR(DenseModel(golden, model).loss(kTargets, 8), 4.845102913814388, 1e-10);
  // The rows of a longer run have the long ones.
  model.config.block_size = 9;
  EXPECT_NEAR(DenseModel(golden, model).loss(kTargets, 8), 4.949960054132587, 1e-10);
}

// The factor of queries and keys follows from the two lengths of a file, whatever the block size.
TEST(DenseModels, LongropeKeepsItsLengthsInOtherPrograms) {
  GptConfig c = config_of("phi3_long");
  const double factor = std::sqrt(2.0);  // 1 + ln(64 / 8) / ln(8)
  EXPECT_NEAR(ops::rope_attention_factor(c.rope_scaling), factor, 1e-15);
  const auto factor_again = [](const GptConfig& out) {
    const GptConfig in = model_from_hf(hf_config(out, "float32", ""), "out", false).config;
    return ops::rope_attention_factor(in.rope_scaling);
  };
  c.block_size = 8;
  EXPECT_EQ(described_length(c), 64);
  EXPECT_NEAR(factor_again(c), factor, 1e-15);
  c.block_size = 100;
  EXPECT_EQ(described_length(c), 100);
  EXPECT_NEAR(factor_again(c), factor, 1e-15);
  EXPECT_NE(hf_config(c, "float32", "").find("attention_factor"), std::string::npos);
  c = config_of("phi3_long");
  EXPECT_EQ(hf_config(c, "float32", "").find("attention_factor"), std::string::npos)
      << "version 4 accepts three fields only";
  c.rope_scaling.attention_factor = 1.5;
  EXPECT_EQ(factor_again(c), 1.5);
}

// llama.cpp's file has both lists as tensors, and the factor of queries and keys beside the
// lengths.
TEST(DenseModels, LongropeGoesThroughGguf) {
  const test::ScratchFolder folder;
  for (const double attention_factor : {0.0, 1.5}) {
    GptConfig c = config_of("phi3_long");
    c.rope_scaling.attention_factor = attention_factor;
    std::vector<TensorEntry> entries{{"token_embd.weight", Encoding::f32, {64, 32}},
                                     {"output.weight", Encoding::f32, {64, 32}}};
    const auto angles = gguf_angle_tensors(c);
    ASSERT_EQ(angles.size(), 2U);
    for (const auto& [name, numbers] : angles)
      entries.push_back({name, Encoding::f32, {std::ssize(numbers)}});
    const std::string path = folder / (attention_factor > 0 ? "given.gguf" : "usual.gguf");
    GgufWriter writer(path, gguf_metadata(c, Encoding::f32, "tiny"), entries);
    writer.lay_out();
    for (const auto& [name, numbers] : angles)
      writer.write(name, 0, std::ssize(numbers), numbers.data(), DType::f32);
    const std::vector<float> zeros(std::size_t{64} * 32);
    for (const char* name : {"token_embd.weight", "output.weight"})
      writer.write(name, 0, std::ssize(zeros), zeros.data(), DType::f32);
    writer.sync();
    writer.commit(writer.written());
    const ForeignModel read = model_from_gguf(GgufReader(path), false);
    EXPECT_EQ(read.dialect, Dialect::gguf_phi3);
    EXPECT_EQ(hf_config(read.config, "float32", ""), hf_config(c, "float32", ""));
    EXPECT_EQ(read.config.rope_scaling.attention_factor, attention_factor);
    EXPECT_EQ(angle_scaling(read.config).divisors, angle_scaling(c).divisors);
    for (const auto& [name, numbers] : angles)
      EXPECT_TRUE(is_no_weight(name, read.dialect)) << name;
  }
}

// PEFT's adapter of query_key_value has the rows of its B in the order of the weight.
TEST(DenseModels, AdaptersHaveTheRowsOfTheirWeights) {
  for (const char* name : {"gemma", "gpt_neox", "phi3"}) {
    ForeignModel model = model_of(name);
    model.config.lora = {.rank = 2, .targets = {"q", "k", "v", "up"}};
    const ParameterSet parameters = described_parameters(model.config);
    const auto weights = tensor_parts(model.config, parameters, model.dialect);
    int compared = 0;
    for (const FactorPart& factor : factor_parts(model.config, parameters, model.dialect)) {
      if (!factor.is_b) continue;
      for (std::int64_t row = 0; row < factor.shape[0]; ++row) {
        std::int64_t there = -1;
        for (const TensorPart& part : weights)
          if (part.own == factor.weight)
            for (const PartRun& run : runs_of(part, factor.row + row, 1))
              there = run.there / part.columns;
        EXPECT_EQ(factor.there(row), there * 2) << factor.own << " row " << row;
        EXPECT_GE(factor.adjacent(row), 1);
        ++compared;
      }
    }
    EXPECT_GT(compared, 100) << name;
  }
}

/// The words with which an export to llama.cpp or transformers is refused.
template <class Write>
std::string refusal_of(const Write& write) {
  try {
    write();
  } catch (const DeckError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DenseModels, WhatOtherProgramsComputeOtherwiseIsRefusedByName) {
  struct Refusal {
    const char* model;
    bool gguf;         ///< by llama.cpp, or by transformers
    const char* word;  ///< of the message
    void (*change)(GptConfig&);
  };
  for (const Refusal& refusal : std::vector<Refusal>{
           {"gemma", false, "embedding_scale", [](GptConfig& c) { c.embedding_scale = 5; }},
           {"gemma", true, "tied", [](GptConfig& c) { c.tied = false; }},
           {"gemma2", true, "window_skip_interval",
            [](GptConfig& c) { c.window_skip_interval = 3; }},
           {"gemma2", true, "attention_softcap", [](GptConfig& c) { c.attention_softcap = 0; }},
           {"gemma2", true, "logit_softcap", [](GptConfig& c) { c.logit_softcap = 0; }},
           {"gemma3", false, "attention_softcap", [](GptConfig& c) { c.attention_softcap = 5; }},
           {"gemma3", false, "rope_scaling_layers",
            [](GptConfig& c) { c.rope_scaling_layers = ScaledLayers::all; }},
           {"granite", false, "attention_window", [](GptConfig& c) { c.window = 5; }},
           {"olmo2", true, "tied", [](GptConfig& c) { c.tied = true; }},
           {"olmo2", false, "qk_norm", [](GptConfig& c) { c.qk_norm_span = QkNormSpan::head; }},
           {"olmo2", false, "norm_place", [](GptConfig& c) { c.norm_place = NormPlace::pre; }},
           {"olmo3", true, "window_skip_interval",
            [](GptConfig& c) { c.window_skip_interval = 2; }},
           {"olmo3", false, "rope_scaling_layers",
            [](GptConfig& c) { c.rope_scaling_layers = ScaledLayers::all; }},
           {"gpt_neox", true, "activation",
            [](GptConfig& c) { c.activation = ops::Activation::gelu_tanh; }},
           {"gpt_neox", false, "norm", [](GptConfig& c) { c.window = 5; }},
           {"phi3", true, "attention_window", [](GptConfig&) {}},
           {"phi3", false, "rope_scaling",
            [](GptConfig& c) {
              c.rope_scaling = {.kind = ops::RopeScaling::Kind::linear, .factor = 2};
            }},
           {"phi3_long", false, "rope_original",
            [](GptConfig& c) { c.rope_scaling.original = 8.5; }},
           {"phi3_long", false, "qk_norm", [](GptConfig& c) { c.qk_norm = true; }}}) {
    GptConfig c = config_of(refusal.model);
    refusal.change(c);
    const std::string words =
        refusal_of([&] { refusal.gguf ? gguf_dialect_of(c) : hf_dialect_of(c); });
    EXPECT_NE(words.find(refusal.word), std::string::npos) << refusal.model << ": " << words;
  }
  // Longrope of the other families is refused, too.
  for (const DenseGolden& golden : dense_goldens()) {
    GptConfig c = config_of(golden.name);
    if (golden.family.type == "phi3" || golden.family.type == "granite") continue;
    c.rope_scaling = config_of("phi3_long").rope_scaling;
    const std::string words = refusal_of([&] { hf_dialect_of(c); });
    EXPECT_NE(words.find("rope_scaling"), std::string::npos) << golden.name << ": " << words;
  }
  GptConfig other = config_of("gemma2");
  other.window_skip_interval = 3;
  EXPECT_EQ(hf_dialect_of(other), Dialect::hf_post) << "transformers has a list of windows";
  other = config_of("phi3");
  other.window = 0;
  EXPECT_EQ(gguf_dialect_of(other), Dialect::gguf_phi3);
  for (const auto& [type, more, word] : std::vector<std::array<std::string, 3>>{
           {"gemma", R"("hidden_act": "silu")", "hidden_act"},
           {"gemma", R"("attention_bias": true)", "attention_bias"},
           {"gemma2", R"("hidden_activation": "gelu")", "hidden_activation"},
           {"gemma2", R"("use_bidirectional_attention": true)", "use_bidirectional_attention"},
           {"gemma2", R"("query_pre_attn_scalar": 0)", "query_pre_attn_scalar"},
           {"gemma2", R"("attn_logit_softcapping": -1)", "attn_logit_softcapping"},
           {"gemma3_text", R"("rope_parameters": {"full_attention": 1, "sliding_attention": {}})",
            "rope_parameters"},
           {"gemma3", R"("vision_config": {})", "images"},
           {"granite", R"("logits_scaling": 0)", "logits_scaling"},
           {"olmo2", R"("attention_bias": true)", "attention_bias"},
           {"olmo3", R"("rope_parameters": {"full_attention": {"rope_theta": 5e5},
             "sliding_attention": {"rope_theta": 1e4}})",
            "rope_theta"},
           {"phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1, 1],
             "long_factor": [2]})",
            "2 and 1 numbers for 2 pairs"},
           {"phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1, 0],
             "long_factor": [2, 2]})",
            "short_factor"},
           {"phi3", R"("rope_scaling": {"type": "linear", "factor": 2})", "only longrope"},
           {"phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1, 1], "mscale": 2,
             "long_factor": [2, 2]})",
            "mscale"},
           {"phi3", R"("partial_rotary_factor": 2)", "partial_rotary_factor"},
           {"gpt_neox", R"("rotary_pct": 0)", "rotary_pct"},
           {"gpt_neox", R"("attention_bias": false)", "attention_bias"},
           {"gpt_neox", R"("hidden_act": "quick_gelu")", "hidden_act"}}) {
    const std::string json = R"({"model_type": ")" + type + R"(", "vocab_size": 24,
        "max_position_embeddings": 32, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, )" +
                             more + "}";
    const std::string words = refusal_of([&] { model_from_hf(json, type, false); });
    EXPECT_NE(words.find(word), std::string::npos) << type << " " << word << ": " << words;
  }
}

}  // namespace
}  // namespace choir
