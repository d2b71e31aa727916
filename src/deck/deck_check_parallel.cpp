#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <vector>

#include "choir/deck/nearest_legal.hpp"
#include "deck_tables.hpp"

namespace choir {
namespace {

class ParallelChecks {
 public:
  explicit ParallelChecks(const Deck& deck) : deck_(deck) {}

  void tensor() {
    const std::int64_t t = deck_.parallel.tensor;
    if (deck_.parallel.sequence && t == 1)
      add({"parallel.sequence", "parallel.tensor"},
          "parallel.sequence = true divides tokens among tensor ranks, but parallel.tensor = 1; "
          "nearest legal: sequence = false, or tensor = 2");
  }

  void zero() {
    const ParallelSection defaults;
    const ParallelSection& parallel = deck_.parallel;
    if (parallel.zero_group != defaults.zero_group && parallel.zero == 0)
      add({"parallel.zero_group", "parallel.zero"},
          fmt::format("parallel.zero_group = \"{}\" is for parallel.zero = 1, 2 or 3: with 0 "
                      "nothing is sharded",
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
    const std::int64_t layers = deck_.family().model(deck_).n_layer();
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

  void offload() {
    const ParallelSection& parallel = deck_.parallel;
    if (parallel.offload == "all" && parallel.zero != 3)
      add({"parallel.offload", "parallel.zero"},
          fmt::format("parallel.offload = \"all\" needs parallel.zero = 3, which gathers "
                      "parameters around their use, not {}; nearest legal: zero = 3 (on one rank, "
                      "too), or offload = \"optimizer\"",
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

std::vector<KeyProblem> deck::check_parallel(const Deck& deck) {
  ParallelChecks checks(deck);
  checks.tensor();
  checks.pipeline();
  checks.zero();
  checks.offload();
  return checks.take();
}

}  // namespace choir
