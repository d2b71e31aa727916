#include "src/models/gpt/foreign/foreign_model.hpp"

#include <fmt/core.h>

#include <filesystem>

#include "src/core/json_document.hpp"
#include "src/core/text.hpp"
#include "src/deck/key_reader.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "src/store/gguf/gguf.hpp"
#include "src/store/llmc/llmc_model.hpp"
#include "src/store/tensor_file.hpp"
#include "src/store/torch/torch_checkpoint.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

ForeignModel model_from_llmc(const LlmcConfig& there) {
  ForeignModel model{.dialect = Dialect::llmc, .config = {}};
  GptConfig& c = model.config;
  c.vocab_size = there.vocab_size;
  c.block_size = there.block_size;
  c.n_layer = there.layers;
  c.n_head = c.n_kv_head = there.heads;
  c.n_embd = there.width;
  c.ffn_width = 4 * there.width;
  c.activation = ops::Activation::gelu_tanh;
  return model;
}

ForeignModel model_from_nanogpt(const nlohmann::json& args, const std::string& source,
                                bool allow_unknown) {
  ForeignModel model{.dialect = Dialect::nanogpt, .config = {}};
  KeyReader keys(args, source, "model_args.");
  GptConfig& c = model.config;
  c.vocab_size = keys.needed("vocab_size");
  c.block_size = keys.needed("block_size");
  c.n_layer = keys.needed("n_layer");
  c.n_head = c.n_kv_head = keys.needed("n_head");
  c.n_embd = keys.needed("n_embd");
  c.ffn_width = 4 * c.n_embd;
  c.bias = keys.flag("bias", true);
  keys.harmless({"dropout"});
  keys.finish(allow_unknown);
  return model;
}

/// Numbers and flags of a Python dict.
nlohmann::json json_of(const PickleDict& dict) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [key, value] : dict.entries) {
    const auto* name = key->as<std::string>();
    if (name == nullptr) continue;
    if (const auto* flag = value->as<bool>())
      object[*name] = *flag;
    else if (const auto* whole = value->as<std::int64_t>())
      object[*name] = *whole;
    else if (const auto* real = value->as<double>())
      object[*name] = *real;
    else if (value->as<std::monostate>() != nullptr)
      object[*name] = nullptr;
    else
      object[*name] = "something else";
  }
  return object;
}

/// model_args of a checkpoint of nanoGPT; nullptr for other checkpoints.
const PickleDict* model_args(const TorchCheckpoint& checkpoint) {
  const auto* root = checkpoint.root().as<PickleDict>();
  const PickleValue* args = root == nullptr ? nullptr : root->find("model_args");
  return args == nullptr ? nullptr : args->as<PickleDict>();
}

ForeignModel described_beside(const std::string& folder, const std::string& weights,
                              bool allow_unknown) {
  const std::string args = (fs::path(folder) / kModelArgs).string();
  if (fs::exists(args)) {
    const JsonDocument document = parse_json(read_deck_text(args), args);
    return model_from_nanogpt(document.root(), args, allow_unknown);
  }
  const std::string config = (fs::path(folder) / "config.json").string();
  if (!fs::exists(config))
    throw DeckError(fmt::format("there is no config.json beside '{}'", weights),
                    "it describes the weights; copy the model's config.json there");
  return model_from_hf(read_deck_text(config), config, allow_unknown);
}

ForeignModel described(const TensorReader& weights, const std::string& folder, bool allow_unknown) {
  if (const auto* llmc = dynamic_cast<const LlmcReader*>(&weights))
    return model_from_llmc(llmc->config());
  if (const auto* gguf = dynamic_cast<const GgufReader*>(&weights))
    return model_from_gguf(*gguf, allow_unknown);
  if (const auto* torch = dynamic_cast<const TorchCheckpoint*>(&weights))
    if (const PickleDict* args = model_args(*torch))
      return model_from_nanogpt(json_of(*args), weights.path(), allow_unknown);
  return described_beside(folder, weights.path(), allow_unknown);
}

void refuse_model(const std::string& who, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw DeckError(fmt::format("{} does not support this model: {}", who, join(problems, "; ")),
                  "export --format hf supports more models");
}

/// Problems that nanoGPT and llm.c have in common.
std::vector<std::string> against_plain_gpt2(const GptConfig& c) {
  std::vector<std::string> problems;
  if (c.norm != ops::Norm::layernorm) problems.emplace_back("model.norm is not layernorm");
  if (c.position != Position::learned) problems.emplace_back("model.position is not learned");
  if (c.n_kv_head != c.n_head) problems.emplace_back("model.n_kv_head is not model.n_head");
  if (c.ffn_width != 4 * c.n_embd) problems.emplace_back("model.ffn_width is not 4 model.n_embd");
  if (!c.tied) problems.emplace_back("model.tied is false");
  if (c.attention_width() != c.n_embd) problems.emplace_back("heads have a width of their own");
  if (c.qk_norm) problems.emplace_back("model.qk_norm is true");
  if (c.window > 0) problems.emplace_back("model.attention_window is not 0");
  if (!has_plain_blocks(c))
    problems.emplace_back(
        "model.norm_offset, norm_place, parallel_branches, a soft cap or a factor of embeddings, "
        "branches, scores or "
        "logits is set");
  if (c.norm_eps != 1e-5) problems.emplace_back("model.norm_eps is not 1e-5");
  return problems;
}

}  // namespace

ForeignFile open_foreign(const std::string& path, bool allow_unknown) {
  ForeignFile file;
  file.weights = open_weights(path);
  file.folder = fs::is_directory(path) ? path : fs::path(path).parent_path().string();
  file.model = described(*file.weights, file.folder, allow_unknown);
  std::vector<std::string> problems;
  for (const KeyProblem& problem : check_model(file.model.config)) problems.push_back(problem.text);
  refuse_problems(file.weights->path(), problems);
  return file;
}

std::string nanogpt_model_args(const GptConfig& c) {
  nlohmann::ordered_json json;
  json["n_layer"] = c.n_layer;
  json["n_head"] = c.n_head;
  json["n_embd"] = c.n_embd;
  json["block_size"] = c.block_size;
  json["bias"] = c.bias;
  json["vocab_size"] = c.vocab_size;
  json["dropout"] = c.dropout;
  return dumped(json, 2) + "\n";
}

void require_nanogpt(const GptConfig& c) {
  std::vector<std::string> problems = against_plain_gpt2(c);
  if (c.activation != ops::Activation::gelu) problems.emplace_back("model.activation is not gelu");
  if (c.has(c.qkv_bias) != c.bias || c.has_norm_bias() != c.bias)
    problems.emplace_back("model.qkv_bias or model.norm_bias is not as model.bias");
  refuse_model("nanoGPT", problems);
}

void require_llmc(const GptConfig& c) {
  std::vector<std::string> problems = against_plain_gpt2(c);
  if (c.activation != ops::Activation::gelu_tanh)
    problems.emplace_back("model.activation is not gelu_tanh");
  refuse_model("llm.c", problems);
}

}  // namespace choir
