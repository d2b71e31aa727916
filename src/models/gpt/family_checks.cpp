// GptFamily: checks of deck values with each other.

#include <algorithm>
#include <set>

#include "choir/nn/layers/feed_forward.hpp"
#include "kernels/attention/attention.hpp"
#include "src/core/text.hpp"
#include "src/deck/nearest_legal.hpp"
#include "src/models/gpt/family.hpp"
#include "src/nn/axes/context_axis.hpp"

namespace choir {
namespace {

/// The smallest number of heads that divides n_embd and keeps heads within the widest supported.
std::int64_t heads_from(const GptConfig& gpt) {
  std::int64_t heads = (gpt.n_embd + ops::kWidestHead - 1) / ops::kWidestHead;
  while (gpt.n_embd % heads != 0) ++heads;
  return heads;
}

std::int64_t ffn_width_of(const GptConfig& gpt) {
  return gpt.ffn_width == 0 ? default_ffn_width(gpt) : gpt.ffn_width;
}

/// True if each rank has its own heads of keys and values, or several ranks share one.
bool divides_kv_heads(const GptConfig& gpt, std::int64_t ranks) {
  const std::int64_t heads = gpt.n_kv_head == 0 ? gpt.n_head : gpt.n_kv_head;
  return heads % ranks == 0 || ranks % heads == 0;
}

/// The legal sizes of parallel.tensor for this model next to `wish`.
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
  if (gpt.position == Position::rope && gpt.rope_width == 0 && gpt.own_head_width % 2 != 0)
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
    const auto of_rope = [&](const std::string& key, bool given) {
      if (given)
        problems.push_back({{key, "model.position"}, key + " is for model.position = \"rope\""});
    };
    of_rope("model.rope_scaling", scaling.kind != Kind::none);
    of_rope("model.rope_factor", scaling.factor != ops::RopeScaling().factor);
    of_rope("model.rope_skip_interval", gpt.rope_skip_interval > 0);
    of_rope("model.rope_width", gpt.rope_width != 0);
    of_rope("model.rope_theta", gpt.rope_theta != GptConfig().rope_theta);
    of_rope("model.rope_local_theta", gpt.rope_local_theta != 0);
    of_rope("model.rope_scaling_layers", gpt.rope_scaling_layers != ScaledLayers::all);
    return;
  }
  if (gpt.rope_width % 2 != 0 || gpt.rope_width > gpt.head_width())
    problems.push_back(
        {{"model.rope_width", "model.head_width", "model.n_embd", "model.n_head"},
         fmt::format(
             "model.rope_width = {} is no even number of the {} features of a head; nearest "
             "legal: {}",
             gpt.rope_width, gpt.head_width(),
             std::min(gpt.rope_width, gpt.head_width()) / 2 * 2)});
  if (gpt.window == 0 && gpt.rope_local_theta != 0)
    problems.push_back({{"model.rope_local_theta", "model.attention_window"},
                        "model.rope_local_theta is for layers with a window, but "
                        "model.attention_window is 0; leave it out, or set the window"});
  if (gpt.rope_scaling_layers == ScaledLayers::full &&
      (gpt.window == 0 || scaling.kind == Kind::none))
    problems.push_back(
        {{"model.rope_scaling_layers", "model.attention_window", "model.rope_scaling"},
         "model.rope_scaling_layers = \"full\" tells layers without a window from those with one, "
         "but there is no model.attention_window or no model.rope_scaling; legal: \"all\""});
  if (scaling.kind == Kind::none) {
    if (scaling.factor != 1)
      add("model.rope_factor",
          fmt::format("model.rope_factor = {} needs model.rope_scaling = \"linear\", \"llama3\", "
                      "\"yarn\" or \"longrope\"",
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
  if (scaling.kind == Kind::longrope) {
    const std::int64_t pairs = gpt.rotated_width() / 2;
    for (const auto& [key, list] : {std::pair{"model.rope_short_factors", &gpt.rope_short_factors},
                                    std::pair{"model.rope_long_factors", &gpt.rope_long_factors}})
      if (std::ssize(*list) != pairs)
        add(key, fmt::format("{} has {} numbers, but {} pairs of features rotate; legal: a number "
                             "for each pair",
                             key, list->size(), pairs));
    if (scaling.attention_factor == 0 && scaling.factor > 1 && scaling.original <= 1)
      add("model.rope_original",
          fmt::format("model.rope_original = {} gives no factor of queries and keys; legal: above "
                      "1, or a model.rope_attention_factor",
                      scaling.original));
  }
  if (scaling.kind == Kind::yarn && gpt.rope_theta <= 1)
    add("model.rope_theta",
        fmt::format("model.rope_scaling = \"yarn\" needs model.rope_theta above 1, not {}",
                    gpt.rope_theta));
}

void check_window(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  if (gpt.packed && gpt.attention == ops::AttentionImplementation::cudnn)
    problems.push_back(
        {{"model.attention", "data.pack"},
         "model.attention = \"cudnn\" has no documents within a row, which data.pack "
         "= true makes; legal: \"auto\" or \"own\""});
  if (gpt.gelu_in_product && gpt.tile > 1)
    problems.push_back({{"model.gelu_in_product", "model.tile"},
                        fmt::format("model.gelu_in_product = true is for whole feed-forward "
                                    "layers, not for model.tile = {}; legal: tile = 1, or "
                                    "gelu_in_product = false",
                                    gpt.tile)});
  if (gpt.attention_softcap > 0 && gpt.attention == ops::AttentionImplementation::cudnn)
    problems.push_back(
        {{"model.attention", "model.attention_softcap"},
         fmt::format("model.attention = \"cudnn\" has no model.attention_softcap = {}; legal: "
                     "\"auto\" or \"own\"",
                     gpt.attention_softcap)});
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
         "model.window_first_layer and model.window_skip_interval select the layers "
         "that have a window, but model.attention_window is 0"});
}

void check_qk_norm(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  if (gpt.qk_norm_span != QkNormSpan::head && !gpt.qk_norm)
    problems.push_back(
        {{"model.qk_norm_span", "model.qk_norm"},
         "model.qk_norm_span = \"width\" is for model.qk_norm = true; leave it out, or "
         "set that"});
}

/// A norm behind a branch undoes a factor of its output.
void check_residual_scale(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  if (gpt.residual_scale != 1 && gpt.norm_place != NormPlace::pre)
    problems.push_back(
        {{"model.residual_scale", "model.norm_place"},
         fmt::format("model.residual_scale = {} is undone by the norms behind the branches of "
                     "model.norm_place = \"{}\"; legal: norm_place = \"pre\", or "
                     "residual_scale = 1",
                     gpt.residual_scale, name_of(gpt.norm_place))});
}

/// Problems of model.lora with the rest of the model.
void check_lora(const GptConfig& gpt, std::vector<KeyProblem>& problems) {
  const Lora none, &lora = gpt.lora;
  if (lora.rank == 0) {
    const auto unused = [&](const char* name, bool given) {
      const std::string key = std::string("model.lora.") + name;
      if (given)
        problems.push_back({{key, "model.lora.rank"},
                            key + " is for adapters, which model.lora.rank = 0 does not make; "
                                  "leave it out, or set the rank"});
    };
    unused("alpha", lora.alpha != none.alpha);
    unused("dropout", lora.dropout != none.dropout);
    unused("rank_stabilised", lora.rank_stabilised != none.rank_stabilised);
    unused("targets", lora.targets != none.targets);
    return;
  }
  const bool gated = ops::activation_inputs(gpt.activation) == 2;
  for (const std::string& target : lora.targets)
    if (target == "gate" && !gated)
      problems.push_back({{"model.lora.targets", "model.activation"},
                          "model.lora.targets: \"gate\" is a part of model.activation = "
                          "\"swiglu\" or \"geglu\"; nearest legal: \"up\""});
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
    const bool synthetic = data.format == DataFormat::synthetic;
    const bool mixed = !gpt_settings(deck_).input_cfg.empty();
    for (KeyProblem& problem : check_blend(gpt_settings(deck_), data.train))
      problems_.push_back(std::move(problem));
    if (synthetic && (mixed || !gpt_settings(deck_).validation.empty()))
      add({"data.input_cfg", "data.validation", "data.format"},
          "data.format = \"synthetic\" reads nothing, but data.input_cfg or data.validation name "
          "data; remove one");
    if (synthetic && !gpt_settings(deck_).shard_seed.empty())
      add({"data.shard_seed", "data.format"},
          "data.shard_seed sets the order in which data are read, and data.format = \"synthetic\" "
          "reads none; remove it");
    if (!synthetic && data.train.empty() && !mixed)
      add({"data.train"},
          "data.train is not given: name files or folders, or set data.format = "
          "\"synthetic\" for random tokens");
    if (synthetic && !(data.train.empty() && data.val.empty()))
      add({"data.train", "data.val", "data.format"},
          "data.format = \"synthetic\" reads nothing, but data.train or data.val name files; "
          "remove one");
    documents();
    if (synthetic && gpt_of(deck_).vocab_size == 0)
      add({"model.vocab_size", "data.format"},
          "data.format = \"synthetic\" needs model.vocab_size, for example 50257");
  }

  void documents() {
    const GptSettings& settings = gpt_settings(deck_);
    if (!separates_documents(deck_)) {
      if (settings.document_end >= 0)
        add({"data.document_end", "data.documents"},
            fmt::format(
                "data.document_end = {} is for data.documents = \"separate\"; leave it out, "
                "or set that",
                settings.document_end));
      return;
    }
    if (settings.model.packed)
      add({"data.documents", "data.pack"},
          "data.documents = \"separate\" is for texts and data.pack = true for conversations; "
          "remove one");
    if (settings.model.attention == ops::AttentionImplementation::cudnn)
      add({"model.attention", "data.documents"},
          "model.attention = \"cudnn\" has no documents within a row, which data.documents = "
          "\"separate\" makes; legal: \"auto\" or \"own\"");
    if (const std::int64_t size = settings.model.vocab_size;
        size > 0 && settings.document_end >= size)
      add({"data.document_end", "model.vocab_size"},
          fmt::format(
              "data.document_end = {} is no token of model.vocab_size = {}; legal: up to {}",
              settings.document_end, size, size - 1));
  }

  void pass() {
    constexpr std::int64_t kMostPositions = std::int64_t{1} << 31;
    const std::int64_t rows = deck_.train.micro_batch_size, block = gpt_of(deck_).block_size;
    if (rows >= kMostPositions / block)
      add({"train.micro_batch_size", "model.block_size"},
          fmt::format("train.micro_batch_size = {} x model.block_size = {} is too much for one "
                      "pass; legal: fewer than {} tokens",
                      rows, block, kMostPositions));
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
  if (!ops::is_gated(gpt.activation)) return 4 * gpt.n_embd;
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
  } else if (gpt.position == Position::rope && gpt.rope_width == 0 && gpt.head_width() % 2 != 0) {
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
  check_qk_norm(gpt, problems);
  check_residual_scale(gpt, problems);
  check_lora(gpt, problems);
  return problems;
}

std::vector<KeyProblem> check_tensor_size(const GptConfig& gpt, std::int64_t t) {
  std::vector<KeyProblem> problems;
  const std::string legal = tensor_sizes_around(gpt, t);
  const auto divides = [&](const char* key, std::int64_t value) {
    if (value % t == 0) return true;
    const bool derived = std::string_view(key) == "ffn_width" && gpt.ffn_width == 0;
    problems.push_back(
        {{std::string("model.") + key, "parallel.tensor"},
         fmt::format("model.{} = {}{} cannot be divided among parallel.tensor = {} ranks; nearest "
                     "legal: {} = {}, or tensor = {}",
                     key, value, derived ? " (derived from model.n_embd)" : "", t, key,
                     multiples_around(value, t), legal)});
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

std::vector<KeyProblem> check_context(const Deck& deck, const GptConfig& gpt) {
  std::vector<KeyProblem> problems;
  const auto add = [&](std::vector<std::string> keys, std::string text) {
    problems.push_back({std::move(keys), std::move(text)});
  };
  if (deck.device == RequestedDevice::cpu && gpt.attention == ops::AttentionImplementation::cudnn)
    add({"model.attention", "device"},
        "model.attention = \"cudnn\" is for device = \"cuda\", not \"cpu\"; legal: \"auto\" or "
        "\"own\"");
  const std::int64_t ranks = deck.parallel.context;
  if (ranks == 1) return problems;
  const std::int64_t t = deck.parallel.tensor;
  if (deck.parallel.context_mode == RequestedContextMode::ulysses && gpt.n_head % t == 0 &&
      gpt.n_head / t % ranks != 0)
    add({"parallel.context", "parallel.context_mode", "model.n_head", "parallel.tensor"},
        fmt::format("parallel.context = {} does not divide the {} heads that each of "
                    "parallel.tensor = {} ranks has of model.n_head = {}, as "
                    "parallel.context_mode = \"ulysses\" requires; legal: context = {}, or "
                    "context_mode = \"gather\"",
                    ranks, gpt.n_head / t, t, gpt.n_head,
                    listed(legal_context_sizes(gpt.n_head / t))));
  if (ranks > gpt.block_size)
    add({"parallel.context", "model.block_size"},
        fmt::format("parallel.context = {} ranks share sequences of model.block_size = {}; "
                    "nearest legal: context = {}",
                    ranks, gpt.block_size, gpt.block_size));
  if (deck.train.reproducible)
    add({"parallel.context", "train.reproducible"},
        fmt::format("train.reproducible = true sums gradients over whole micro-batches, which "
                    "parallel.context = {} divides; nearest legal: context = 1",
                    ranks));
  return problems;
}

namespace {

/// The keys that training on the fly needs, and those that it has no use for.
std::vector<KeyProblem> check_on_the_fly(const Deck& deck) {
  const GptSettings& gpt = gpt_settings(deck);
  std::vector<KeyProblem> problems;
  if (!gpt.on_the_fly) return problems;
  const auto add = [&](const std::string& key, const std::string& why) {
    problems.push_back({{"data.on_the_fly", key}, "data.on_the_fly = true " + why});
  };
  if (gpt.tokenizer == "char")
    add("data.tokenizer",
        "needs the vocabulary before it reads a text, and data.tokenizer = \"char\" is made of the "
        "whole text; legal: \"byte\", or the file of a tokenizer");
  if (!gpt.input_cfg.empty())
    add("data.input_cfg",
        "reads one list of texts, and data.input_cfg is a blend; name the texts "
        "in data.train, or prepare them");
  if (deck.data.format != DataFormat::automatic && deck.data.format != DataFormat::text)
    add("data.format", fmt::format("reads texts, and data.format = \"{}\" is no text; legal: "
                                   "\"auto\" or \"text\"",
                                   name_of(deck.data.format)));
  if (deck.data.preload == Preload::device)
    add("data.preload",
        "encodes text during the run, and data.preload = \"device\" needs all tokens before it; "
        "legal: \"none\"");
  if (gpt.val_fraction != GptSettings().val_fraction && gpt.val_fraction != 0)
    add("data.val_fraction",
        "reserves no part of the text for validation; name data.val instead "
        "of data.val_fraction");
  return problems;
}

}  // namespace

namespace {

/// Attention in tiles works on whole sequences, and its products have no adapters.
std::vector<KeyProblem> check_tiles(const Deck& deck, const GptConfig& gpt) {
  std::vector<KeyProblem> problems;
  if (gpt.attention_chunk == 0) return problems;
  const auto add = [&](const std::string& key, const std::string& why) {
    problems.push_back({{"train.attention_chunk", key},
                        fmt::format("train.attention_chunk = {} {}; nearest legal: "
                                    "attention_chunk = 0",
                                    gpt.attention_chunk, why)});
  };
  if (deck.parallel.context > 1)
    add("parallel.context", fmt::format("divides sequences that a rank has whole, but "
                                        "parallel.context = {} divides them among ranks, whose "
                                        "shares are smaller already",
                                        deck.parallel.context));
  for (const char* target : {"q", "k", "v", "o"})
    if (gpt.lora.adapts(target)) {
      add("model.lora.rank", fmt::format("computes {} again without its adapter", target));
      break;
    }
  return problems;
}

}  // namespace

std::vector<KeyProblem> GptFamily::check(const Deck& deck) const {
  Checks checks(deck);
  checks.add(check_tiles(deck, gpt_of(deck)));
  checks.add(check_model(gpt_of(deck)));
  checks.add(choir::check_tensor_size(gpt_of(deck), deck.parallel.tensor));
  checks.add(check_context(deck, gpt_of(deck)));
  checks.add(check_on_the_fly(deck));
  checks.pass();
  checks.data();
  return checks.take();
}

}  // namespace choir
