#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <vector>

#include "choir/nn/context_axis.hpp"
#include "choir/nn/feed_forward.hpp"
#include "deck_tables.hpp"
#include "nearest_legal.hpp"

namespace choir {
namespace {

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

class ParallelChecks {
 public:
  explicit ParallelChecks(const Deck& deck) : deck_(deck) {}

  void tensor() {
    const std::int64_t t = deck_.parallel.tensor;
    const GptConfig& gpt = deck_.model.gpt;
    if (deck_.parallel.sequence && t == 1)
      add({"parallel.sequence", "parallel.tensor"},
          "parallel.sequence = true divides tokens among tensor ranks, but parallel.tensor = 1; "
          "nearest legal: sequence = false, or tensor = 2");
    if (deck_.model.speech()) return;
    for (KeyProblem& problem : check_tensor_size(gpt, t))
      add(std::move(problem.keys), std::move(problem.text));
  }

  void zero() {
    const ParallelSection defaults;
    const ParallelSection& parallel = deck_.parallel;
    if (parallel.zero_group != defaults.zero_group && parallel.zero == 0)
      add({"parallel.zero_group", "parallel.zero"},
          fmt::format("parallel.zero_group = \"{}\" is for parallel.zero = 1, 2 or 3: with 0 every "
                      "rank has everything",
                      parallel.zero_group));
    if (parallel.zero_prefetch != defaults.zero_prefetch && parallel.zero != 3)
      add({"parallel.zero_prefetch", "parallel.zero"},
          fmt::format("parallel.zero_prefetch = {} is for parallel.zero = 3, not {}: the others "
                      "gather nothing ahead of its use",
                      parallel.zero_prefetch, parallel.zero));
  }

  void pipeline() {
    const ParallelSection& parallel = deck_.parallel;
    const std::int64_t stages = parallel.pipeline, chunks = parallel.virtual_stages;
    const std::int64_t layers =
        deck_.model.speech() ? speech_of(deck_).n_layer : deck_.model.gpt.n_layer;
    if (stages > layers)
      add({"parallel.pipeline", "model.n_layer"},
          fmt::format("parallel.pipeline = {} is more than model.n_layer = {}: a stage needs a "
                      "layer; nearest legal: pipeline = {}",
                      stages, layers, layers));
    else if (stages * chunks > layers)
      add({"parallel.virtual_stages", "parallel.pipeline", "model.n_layer"},
          fmt::format("parallel.pipeline = {} x parallel.virtual_stages = {} cut the model into {} "
                      "pieces, but model.n_layer = {}; nearest legal: virtual_stages = {}, or "
                      "n_layer = {}",
                      stages, chunks, stages * chunks, layers, layers / stages, stages * chunks));
    if (chunks > 1 && parallel.schedule != "interleaved")
      add({"parallel.virtual_stages", "parallel.schedule"},
          fmt::format("parallel.virtual_stages = {} is for parallel.schedule = \"interleaved\", "
                      "\"{}\" has one piece a stage; nearest legal: virtual_stages = 1",
                      chunks, parallel.schedule));
    if (chunks > 1 && stages == 1)
      add({"parallel.virtual_stages", "parallel.pipeline"},
          fmt::format("parallel.virtual_stages = {} shares layers among stages of a pipeline, but "
                      "parallel.pipeline = 1; nearest legal: virtual_stages = 1, or pipeline = 2",
                      chunks));
  }

  void context() {
    const std::int64_t ranks = deck_.parallel.context;
    const GptConfig& gpt = deck_.model.gpt;
    if (ranks == 1 || deck_.model.speech()) return;
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

  void offload() {
    const ParallelSection& parallel = deck_.parallel;
    if (parallel.offload == "all" && parallel.zero != 3)
      add({"parallel.offload", "parallel.zero"},
          fmt::format("parallel.offload = \"all\" brings parameters in around their use, as "
                      "parallel.zero = 3 does, not {}; nearest legal: zero = 3 (on one rank, too), "
                      "or offload = \"optimizer\"",
                      parallel.zero));
    if (!parallel.offload_dir.empty() && parallel.offload != "file")
      add({"parallel.offload_dir", "parallel.offload"},
          fmt::format("parallel.offload_dir = \"{}\" is for parallel.offload = \"file\", not "
                      "\"{}\"",
                      parallel.offload_dir, parallel.offload));
  }

  std::vector<KeyProblem> take() { return std::move(problems_); }

 private:
  void add(std::vector<std::string> keys, std::string text) {
    problems_.push_back({std::move(keys), std::move(text)});
  }

  const Deck& deck_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

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

std::vector<KeyProblem> deck::check_parallel(const Deck& deck) {
  ParallelChecks checks(deck);
  checks.tensor();
  checks.pipeline();
  checks.context();
  checks.zero();
  checks.offload();
  return checks.take();
}

}  // namespace choir
