// GptFamily: what is wrong with the values of a deck together.
#include <algorithm>
#include <set>

#include "choir/core/text.hpp"
#include "choir/deck/nearest_legal.hpp"
#include "choir/models/gpt/gpt_settings.hpp"
#include "choir/nn/axes/context_axis.hpp"
#include "choir/nn/layers/feed_forward.hpp"
#include "choir/ops/attention.hpp"
#include "src/models/gpt/gpt_family.hpp"

namespace choir {
namespace {

/// The fewest heads that divide n_embd and are not too wide.
std::int64_t heads_from(const GptConfig& gpt) {
  std::int64_t heads = (gpt.n_embd + ops::kWidestHead - 1) / ops::kWidestHead;
  while (gpt.n_embd % heads != 0) ++heads;
  return heads;
}

std::int64_t ffn_width_of(const GptConfig& gpt) {
  return gpt.ffn_width == 0 ? default_ffn_width(gpt) : gpt.ffn_width;
}

/// Each rank has heads of keys and values of its own, or several share one.
bool divides_kv_heads(const GptConfig& gpt, std::int64_t ranks) {
  const std::int64_t heads = gpt.n_kv_head == 0 ? gpt.n_head : gpt.n_kv_head;
  return heads % ranks == 0 || ranks % heads == 0;
}

/// The sizes of parallel.tensor next to `wish` that this model allows.
std::string tensor_sizes_around(const GptConfig& gpt, std::int64_t wish) {
  std::int64_t below = 1, above = 0;
  for (std::int64_t t = 1; t <= kMostTensorRanks; ++t) {
    if (gpt.n_head % t != 0 || !divides_kv_heads(gpt, t) || ffn_width_of(gpt) % t != 0) continue;
    if (t < wish) below = t;
    if (t > wish && above == 0) above = t;
  }
  return above == 0 ? std::to_string(below) : fmt::format("{} or {}", below, above);
}

/// "1, 2 or 4"
std::string listed(const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == values.size() ? " or " : ", ", values[i]);
  return text;
}

void check_tiles(const GptConfig& gpt, std::int64_t t, std::vector<KeyProblem>& problems) {
  const std::int64_t width = ffn_width_of(gpt);
  if (width / t % gpt.tile == 0) return;
  const std::string of_rank =
      t == 1 ? ""
             : fmt::format(", of which each of parallel.tensor = {} ranks has {}", t, width / t);
  problems.push_back(
      {{"model.tile", "model.ffn_width", "parallel.tensor"},
       fmt::format("model.tile = {} does not divide model.ffn_width = {}{}; nearest legal: tile = "
                   "{}, or ffn_width = {}",
                   gpt.tile, width, of_rank,
                   divisors_around(width / t, gpt.tile, FeedForward::kMostTiles),
                   multiples_around(width, t * gpt.tile))});
}

void check_own_width(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  if (gpt.position == Position::rope && gpt.own_head_width % 2 != 0)
    problems.push_back({{"model.head_width", "model.position"},
                        fmt::format("model.position = \"rope\" rotates pairs, but model.head_width "
                                    "is {}; nearest legal: {}",
                                    gpt.own_head_width, multiples_around(gpt.own_head_width, 2))});
}

void check_norm_bias(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  if (gpt.norm_bias == Biases::yes && gpt.norm == ops::Norm::rmsnorm)
    problems.push_back({{"model.norm_bias", "model.norm"},
                        "model.norm_bias = \"yes\", but model.norm = \"rmsnorm\" has no bias; "
                        "legal: \"auto\" or \"no\""});
}

void check_rope(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  const ops::RopeScaling& scaling = gpt.rope_scaling;
  using Kind = ops::RopeScaling::Kind;
  const auto add = [&](const char* key, const std::string& why) {
    problems.push_back({{key, "model.rope_scaling"}, why});
  };
  if (gpt.position != Position::rope) {
    if (scaling.kind != Kind::none)
      add("model.position", "model.rope_scaling is for model.position = \"rope\"");
    if (gpt.rope_skip_interval > 0)
      problems.push_back({{"model.rope_skip_interval", "model.position"},
                          "model.rope_skip_interval is for model.position = \"rope\""});
    return;
  }
  if (scaling.kind == Kind::none) {
    if (scaling.factor != 1)
      add("model.rope_factor",
          fmt::format("model.rope_factor = {} needs model.rope_scaling = \"linear\", \"llama3\" or "
                      "\"yarn\"",
                      scaling.factor));
    return;
  }
  if (scaling.kind != Kind::linear && scaling.original <= 0)
    add("model.rope_original",
        "model.rope_original is not given: the length that the model was first trained with, for "
        "example 8192");
  if (scaling.kind == Kind::llama3 && scaling.low >= scaling.high)
    add("model.rope_low_factor",
        fmt::format("model.rope_low_factor = {} is not below model.rope_high_factor = {}",
                    scaling.low, scaling.high));
  if (scaling.kind == Kind::yarn && scaling.beta_slow >= scaling.beta_fast)
    add("model.rope_beta_slow",
        fmt::format("model.rope_beta_slow = {} is not below model.rope_beta_fast = {}",
                    scaling.beta_slow, scaling.beta_fast));
  if (scaling.kind == Kind::yarn && gpt.rope_theta <= 1)
    add("model.rope_theta",
        fmt::format("model.rope_scaling = \"yarn\" needs model.rope_theta above 1, not {}",
                    gpt.rope_theta));
}

void check_window(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  if (gpt.window > 0) {
    if (gpt.attention == ops::AttentionImplementation::cudnn && gpt.window < gpt.block_size)
      problems.push_back(
          {{"model.attention", "model.attention_window"},
           fmt::format("model.attention = \"cudnn\" has no model.attention_window = {}; "
                       "legal: \"auto\" or \"own\"",
                       gpt.window)});
    return;
  }
  if (gpt.window_first_layer > 0 || gpt.window_skip_interval > 0)
    problems.push_back(
        {{"model.window_first_layer", "model.window_skip_interval", "model.attention_window"},
         "model.window_first_layer and model.window_skip_interval say which layers "
         "have a window, but model.attention_window is 0"});
}

/// What of model.lora does not go with the rest of the model.
void check_lora(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  const Lora& lora = gpt.lora;
  if (lora.rank == 0) return;
  const bool gated = ops::activation_inputs(gpt.activation) == 2;
  for (const std::string& target : lora.targets)
    if (target == "gate" && !gated)
      problems.push_back({{"model.lora.targets", "model.activation"},
                          "model.lora.targets: \"gate\" is a part of model.activation = "
                          "\"swiglu\" alone; nearest legal: \"up\""});
  if (gpt.tile > 1 && (lora.adapts("gate") || lora.adapts("up") || lora.adapts("down")))
    problems.push_back({{"model.lora.targets", "model.tile"},
                        fmt::format("model.lora.targets of the feed-forward layer are not "
                                    "supported in model.tile = {}; nearest legal: tile = 1, or "
                                    "targets = [\"q\", \"k\", \"v\", \"o\"]",
                                    gpt.tile)});
}

class Checks {
 public:
  explicit Checks(const Deck& deck) : deck_(deck) {}

  void data() {
    const DataSection& data = deck_.data;
    const bool synthetic = data.format == "synthetic";
    const bool mixed = !gpt_settings(deck_).input_cfg.empty();
    if (mixed && !data.train.empty())
      add({"data.train", "data.input_cfg"},
          "data.train and data.input_cfg both say what to train on; remove one");
    if (synthetic && (mixed || !gpt_settings(deck_).validation.empty()))
      add({"data.input_cfg", "data.validation", "data.format"},
          "data.format = \"synthetic\" reads nothing, but data.input_cfg or data.validation name "
          "conversations; remove one");
    if (!synthetic && data.train.empty() && !mixed)
      add({"data.train"},
          "data.train is not given: name files or folders, or set data.format = "
          "\"synthetic\" for random tokens");
    if (synthetic && !(data.train.empty() && data.val.empty()))
      add({"data.train", "data.val", "data.format"},
          "data.format = \"synthetic\" reads nothing, but data.train or data.val name files; "
          "remove one");
    if (synthetic && gpt_of(deck_).vocab_size == 0)
      add({"model.vocab_size", "data.format"},
          "data.format = \"synthetic\" needs model.vocab_size, for example 50257");
    if (data.readers_every > 0 && data.reader != "scatter")
      add({"data.readers_every", "data.reader"},
          fmt::format("data.readers_every = {} is for data.reader = \"scatter\", not \"{}\"",
                      data.readers_every, data.reader));
  }

  void context() {
    const std::int64_t ranks = deck_.parallel.context;
    const GptConfig& gpt = gpt_of(deck_);
    if (ranks == 1) return;
    const std::int64_t t = deck_.parallel.tensor;
    if (gpt.n_head % t == 0 && gpt.n_head / t % ranks != 0)
      add({"parallel.context", "model.n_head", "parallel.tensor"},
          fmt::format("parallel.context = {} does not divide the {} heads that each of "
                      "parallel.tensor = {} ranks has of model.n_head = {}; legal: context = {}",
                      ranks, gpt.n_head / t, t, gpt.n_head,
                      listed(legal_context_sizes(gpt.n_head / t))));
    if (ranks > gpt.block_size)
      add({"parallel.context", "model.block_size"},
          fmt::format("parallel.context = {} ranks share sequences of model.block_size = {}; "
                      "nearest legal: context = {}",
                      ranks, gpt.block_size, gpt.block_size));
    if (deck_.train.reproducible)
      add({"parallel.context", "train.reproducible"},
          fmt::format("train.reproducible = true sums gradients over whole micro-batches, which "
                      "parallel.context = {} divides; nearest legal: context = 1",
                      ranks));
    if (deck_.parallel.zero_group != "all")
      add({"parallel.context", "parallel.zero_group"},
          fmt::format("parallel.zero_group = \"{}\" is not yet supported with parallel.context = "
                      "{}; legal: \"all\"",
                      deck_.parallel.zero_group, ranks));
  }

  void pass() {
    constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
    const std::int64_t rows = deck_.train.micro_batch_size, block = gpt_of(deck_).block_size;
    if (rows >= kMostTokens / block)
      add({"train.micro_batch_size", "model.block_size"},
          fmt::format("train.micro_batch_size = {} x model.block_size = {} is too much for one "
                      "pass; legal: fewer than {} tokens",
                      rows, block, kMostTokens));
  }

  void add(std::vector<std::string> keys, std::string text) {
    problems_.push_back({std::move(keys), std::move(text)});
  }
  void add(std::vector<KeyProblem> problems) {
    for (KeyProblem& problem : problems) problems_.push_back(std::move(problem));
  }
  std::vector<KeyProblem> take() { return std::move(problems_); }

 private:
  const Deck& deck_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

std::int64_t default_ffn_width(const GptConfig& gpt) {
  if (gpt.activation != ops::Activation::swiglu) return 4 * gpt.n_embd;
  return (8 * gpt.n_embd + 3 * 64 - 1) / (3 * 64) * 64;
}

std::vector<KeyProblem> check_model(const GptConfig& gpt) {
  std::vector<KeyProblem> problems;
  if (gpt.own_head_width > 0) {
    check_own_width(gpt, problems);
  } else if (gpt.n_embd % gpt.n_head != 0) {
    problems.push_back(
        {{"model.n_embd", "model.n_head"},
         fmt::format(
             "model.n_embd = {} is not a multiple of model.n_head = {}; nearest legal: n_embd = "
             "{}, or n_head = {}",
             gpt.n_embd, gpt.n_head, multiples_around(gpt.n_embd, gpt.n_head),
             divisors_around(gpt.n_embd, gpt.n_head))});
  } else if (gpt.head_width() > ops::kWidestHead) {
    problems.push_back(
        {{"model.n_embd", "model.n_head"},
         fmt::format("a head is model.n_embd / model.n_head = {} wide, at most {} is supported; "
                     "nearest legal: n_head = {}",
                     gpt.head_width(), ops::kWidestHead, heads_from(gpt))});
  } else if (gpt.position == Position::rope && gpt.head_width() % 2 != 0) {
    problems.push_back(
        {{"model.n_embd", "model.n_head", "model.position"},
         fmt::format(
             "model.position = \"rope\" rotates pairs, but a head is model.n_embd / model.n_head = "
             "{} wide; nearest legal: n_embd = {}",
             gpt.head_width(), multiples_around(gpt.n_embd, 2 * gpt.n_head))});
  }
  if (gpt.n_kv_head != 0 && gpt.n_head % gpt.n_kv_head != 0)
    problems.push_back(
        {{"model.n_kv_head", "model.n_head"},
         fmt::format("model.n_kv_head = {} does not divide model.n_head = {}; nearest legal: {}",
                     gpt.n_kv_head, gpt.n_head, divisors_around(gpt.n_head, gpt.n_kv_head))});
  check_norm_bias(gpt, problems);
  check_rope(gpt, problems);
  check_window(gpt, problems);
}

check_lora(gpt, problems);
return problems;
}

std::vector<KeyProblem> check_tensor_size(const GptConfig& gpt, std::int64_t t) {
  std::vector<KeyProblem> problems;
  const std::string legal = tensor_sizes_around(gpt, t);
  const auto divides = [&](const char* key, std::int64_t value) {
    if (value % t == 0) return true;
    problems.push_back(
        {{std::string("model.") + key, "parallel.tensor"},
         fmt::format("model.{} = {} cannot be divided among parallel.tensor = {} ranks; nearest "
                     "legal: {} = {}, or tensor = {}",
                     key, value, t, key, multiples_around(value, t), legal)});
    return false;
  };
  if (divides("n_head", gpt.n_head) && !divides_kv_heads(gpt, t))
    problems.push_back({{"model.n_kv_head", "parallel.tensor"},
                        fmt::format("model.n_kv_head = {} is neither a multiple nor a divisor of "
                                    "parallel.tensor = {}; nearest legal: tensor = {}",
                                    gpt.n_kv_head, t, legal)});
  if (divides("ffn_width", ffn_width_of(gpt))) check_tiles(gpt, t, problems);
  return problems;
}

std::vector<KeyProblem> GptFamily::check(const Deck& deck) const {
  Checks checks(deck);
  checks.add(check_model(gpt_of(deck)));
  checks.add(choir::check_tensor_size(gpt_of(deck), deck.parallel.tensor));
  checks.context();
  checks.pass();
  checks.data();
  return checks.take();
}

// GptFamily: the keys that the deck has for it.
namespace {

// Far above any model: a slip of the finger is refused at once, and sizes multiply without
// overflow.
constexpr double kMostLayers = 10'000;
constexpr double kMostWidth = 1 << 20;
constexpr double kMostRank = 1 << 16;
constexpr double kMostTokens = 1 << 30;  // BLAS counts rows and columns with 32 bits

using Table = KeyTable<GptSettings>;

void add_rope_keys(Table& table) {
  using ops::RopeScaling;
  auto rope = table.section<RopeScaling>(
      "model", [](GptSettings& settings) -> RopeScaling& { return settings.model.rope_scaling; });
  rope.add("rope_scaling", &RopeScaling::kind, "",
           "Lower rotary frequencies for sequences longer than those of the first training: linear "
           "divides all by rope_factor, llama3 and yarn those of long waves.")
      .one_of({"none", "linear", "llama3", "yarn"});
  rope.add("rope_factor", &RopeScaling::factor, "", "What rope_scaling divides frequencies by.")
      .at_least(1);
  rope.add("rope_original", &RopeScaling::original, "tokens",
           "llama3 and yarn: the length of sequences in the first training.")
      .at_least(0);
  rope.add("rope_low_factor", &RopeScaling::low, "",
           "llama3: waves longer than rope_original / this are divided.")
      .above(0);
  rope.add("rope_high_factor", &RopeScaling::high, "",
           "llama3: waves shorter than rope_original / this stay.")
      .above(0);
  rope.add("rope_beta_fast", &RopeScaling::beta_fast, "turns",
           "yarn: pairs that turn more often within rope_original stay.")
      .above(0);
  rope.add("rope_beta_slow", &RopeScaling::beta_slow, "turns",
           "yarn: pairs that turn less often within rope_original are divided.")
      .above(0);
  rope.add("rope_truncate", &RopeScaling::truncate, "",
           "yarn: the pairs between which the division sets in are rounded to whole ones.");
  rope.add("rope_attention_factor", &RopeScaling::attention_factor, "",
           "yarn: multiplies rotated queries and keys. 0: 0.1 ln(rope_factor) + 1.")
      .at_least(0);
}

void add_model_keys(Table& table) {
  auto gpt = table.section("model", &GptSettings::model);
  gpt.add("n_layer", &GptConfig::n_layer, "", "Blocks.").at_least(1).at_most(kMostLayers);
  gpt.add("n_head", &GptConfig::n_head, "", "Attention heads. Divides n_embd.")
      .at_least(1)
      .at_most(kMostWidth);
  gpt.add("n_kv_head", &GptConfig::n_kv_head, "",
          "Heads of keys and values (grouped-query attention). Divides n_head. 0: n_head.")
      .at_least(0);
  gpt.add("n_embd", &GptConfig::n_embd, "", "Width of the residual stream.")
      .at_least(1)
      .at_most(kMostWidth);
  gpt.add("head_width", &GptConfig::own_head_width, "",
          "Width of a head where it is not n_embd / n_head, which 0 means.")
      .at_least(0)
      .at_most(static_cast<double>(ops::kWidestHead));
  gpt.add("block_size", &GptConfig::block_size, "tokens", "Length of a training sequence.")
      .at_least(1)
      .at_most(kMostTokens);
  gpt.add("vocab_size", &GptConfig::vocab_size, "tokens",
          "Size of the vocabulary. 0: that of the data. With data.format synthetic it must be "
          "given.")
      .at_least(0)
      .at_most(kMostTokens);
  gpt.add("ffn_width", &GptConfig::ffn_width, "",
          "Width of the feed-forward layer. 0: 4 n_embd; for swiglu 8/3 n_embd rounded up to 64.")
      .at_least(0)
      .at_most(16 * kMostWidth);
  gpt.add("tile", &GptConfig::tile, "",
          "Memory-centric tiling: the feed-forward layer of each block is run in so many tiles of "
          "ffn_width, each with a bucket of parameters of its own; with parallel.zero = 3 only one "
          "tile and those gathered ahead are whole. Divides ffn_width / parallel.tensor. Sums are "
          "in another order, nothing else changes, also no checkpoint.")
      .at_least(1)
      .at_most(FeedForward::kMostTiles)
      .when_resumed(OnResume::free);
  gpt.add("bias", &GptConfig::bias, "", "Biases in linear layers and LayerNorm.");
  gpt.add("qkv_bias", &GptConfig::qkv_bias, "",
          "Biases of queries, keys and values (Qwen2 has these alone). auto: as bias.")
      .one_of({"auto", "yes", "no"});
  gpt.add("norm_bias", &GptConfig::norm_bias, "", "Biases of LayerNorm. auto: as bias.")
      .one_of({"auto", "yes", "no"});
  gpt.add("dropout", &GptConfig::dropout, "probability",
          "Dropout of embeddings and of both outputs of each block.")
      .at_least(0)
      .below(1);
  gpt.add("tied", &GptConfig::tied, "", "The head shares the token embedding.");
  gpt.add("norm", &GptConfig::norm, "", "Normalisation.").one_of({"layernorm", "rmsnorm"});
  gpt.add("norm_eps", &GptConfig::norm_eps, "", "Added to the variance.").above(0);
  gpt.add("activation", &GptConfig::activation, "",
          "Nonlinearity of the feed-forward layer; gelu is the exact (erf) form.")
      .one_of({"gelu", "gelu_tanh", "relu", "swiglu", "silu"});
  gpt.add("position", &GptConfig::position, "", "Learned table, or rotary embedding.")
      .one_of({"learned", "rope"});
  gpt.add("rope_theta", &GptConfig::rope_theta, "", "Base of the rotary wavelengths.").above(0);
  gpt.add("rope_skip_interval", &GptConfig::rope_skip_interval, "layers",
          "Every so many-th layer does not rotate (SmolLM3: 4). 0: all layers do.")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("qk_norm", &GptConfig::qk_norm, "",
          "RMSNorm of every head of queries and keys before positions (Qwen3).");
  gpt.add("attention_window", &GptConfig::window, "tokens",
          "Sliding window: the last so many positions a query sees, its own among them. 0: all.")
      .at_least(0)
      .at_most(kMostTokens);
  gpt.add("window_first_layer", &GptConfig::window_first_layer, "layers",
          "So many layers at the start have no window (Qwen2's max_window_layers).")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("window_skip_interval", &GptConfig::window_skip_interval, "layers",
          "Every so many-th layer has no window (Gemma 2: 2, Gemma 3: 6). 0: all have.")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("attention", &GptConfig::attention, "",
          "Attention kernel: own, or cuDNN's on device cuda (an error where it refuses the shape); "
          "auto takes cuDNN where it can.")
      .one_of({"auto", "own", "cudnn"})
      .when_resumed(OnResume::free);
}

/// "" where all are targets, once each.
std::string wrong_target(const std::vector<std::string>& targets) {
  std::vector<std::string> legal(std::begin(kLoraTargets), std::end(kLoraTargets));
  legal.emplace_back("all");
  std::set<std::string> seen;
  for (const std::string& target : targets) {
    if (std::find(legal.begin(), legal.end(), target) == legal.end())
      return fmt::format("there is no target \"{}\"; nearest legal: \"{}\"", target,
                         nearest_name(target, legal));
    if (!seen.insert(target).second) return fmt::format("\"{}\" is given twice", target);
  }
  if (targets.empty()) return "no target is given; legal: [\"all\"]";
  if (seen.contains("all") && seen.size() > 1) return "\"all\" has the others already";
  return {};
}

void add_lora_keys(Table& table) {
  auto lora = table.section<Lora>(
      "model", [](GptSettings& settings) -> Lora& { return settings.model.lora; });
  lora.add("lora.rank", &Lora::rank, "",
           "Low-rank adapters (Hu et al. 2021): beside each target W a product B A of this inner "
           "width is trained, and all else is frozen, but for train.unfreeze. 0: none.")
      .at_least(0)
      .at_most(kMostRank);
  lora.add("lora.alpha", &Lora::alpha, "", "B A counts for alpha / rank of itself.").above(0);
  lora.add("lora.dropout", &Lora::dropout, "probability",
           "Dropout of what adapters read. The frozen layers read all of it.")
      .at_least(0)
      .below(1);
  lora.add("lora.rank_stabilised", &Lora::rank_stabilised, "",
           "B A counts for alpha / sqrt(rank) of itself (rsLoRA, Kalajdzievski 2023).");
  lora.add("lora.targets", &Lora::targets, "",
           "Linear layers of the blocks that have adapters: q, k, v, o, gate (of swiglu), up, "
           "down, or all.")
      .checked("q | k | v | o | gate | up | down | all", [](const KeyValue& value) {
        return wrong_target(std::get<std::vector<std::string>>(value));
      });
}

void add_run_keys(Table& table) {
  const auto itself = [](GptSettings& settings) -> GptSettings& { return settings; };
  auto data = table.section<GptSettings>("data", itself);
  data.add("tokenizer", &GptSettings::tokenizer, "", "For text: one token a character, or a byte.")
      .one_of({"char", "byte"});
  data.add("val_fraction", &GptSettings::val_fraction, "",
           "Part at the end of a text that is kept for validation when it is prepared.")
      .at_least(0)
      .below(1);
  data.add("input_cfg", &GptSettings::input_cfg, "",
           "Conversations, instead of data.train: a JSON list of folders and groups with weights, "
           "[{\"folder\": \"data/a\", \"weight\": 2}, ...].")
      .when_resumed(OnResume::same_contents);
  data.add("validation", &GptSettings::validation, "",
           "Conversations: validation sets with names, each \"FOLDER[,FOLDER...]\", beside those "
           "of data.val, which are called as their folders.")
      .when_resumed(OnResume::same_contents);
  auto train = table.section("train", &GptSettings::model);
  train
      .add("label_smoothing", &GptConfig::label_smoothing, "",
           "Share of each target given to all symbols of the vocabulary alike (Szegedy et al. "
           "2016). The training loss has it; the validation loss is the plain cross-entropy.")
      .at_least(0)
      .below(1);
  auto eval = table.section<GptSettings>("eval", itself);
  eval.add("batches", &GptSettings::eval_batches, "global batches",
           "Validation batches of an evaluation, from the start. 0: all.")
      .at_least(0);
  eval.add("sample_tokens", &GptSettings::sample_tokens, "tokens",
           "Length of the text generated at each evaluation. 0: none.")
      .at_least(0);
  eval.add("sample_prompt", &GptSettings::sample_prompt, "", "What the text begins with.");
  eval.add("sample_temperature", &GptSettings::sample_temperature, "",
           "Divides the logits. 0: always the most likely token.")
      .at_least(0);
  eval.add("sample_top_k", &GptSettings::sample_top_k, "tokens",
           "Sample from the top k tokens only. 0: from all.")
      .at_least(0);
}

}  // namespace

const KeySet& GptFamily::keys() const {
  static const Table kTable =
      [] {
        Table table;
        add_model_keys(table);
        add_rope_keys(table);
      }

  add_lora_keys(table);
  add_run_keys(table);
  return table;
}
();
return kTable;
}

std::unique_ptr<FamilySettings> GptFamily::settings() const {
  return std::make_unique<SettingsOf<GptSettings>>();
}

void GptFamily::derive(Deck& deck) const {
  GptConfig& gpt = deck.families.of<GptSettings>().model;
  if (gpt.n_kv_head == 0) {
    gpt.n_kv_head = gpt.n_head;
    deck.mark_derived("model.n_kv_head");
  }
  if (gpt.ffn_width == 0) {
    gpt.ffn_width = default_ffn_width(gpt);
    deck.mark_derived("model.ffn_width");
  }
}

ModelConfig GptFamily::model(const Deck& deck) const {
  return gpt_of(deck);
}

std::int64_t& GptFamily::vocab_size(Deck& deck) const {
  return deck.families.of<GptSettings>().model.vocab_size;
}

}  // namespace choir
