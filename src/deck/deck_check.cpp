// Checks that concern several keys of a deck.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string_view>
#include <vector>

#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/deck/nearest_legal.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {
namespace {

class Checks {
 public:
  explicit Checks(const Deck& deck) : deck_(deck) {}

  void add(std::vector<std::string> keys, std::string text) {
    problems_.push_back({std::move(keys), std::move(text)});
  }

  void batch() {
    const TrainSection& train = deck_.train;
    const std::vector<std::string> keys{"train.micro_batch_size", "train.global_batch_size",
                                        "train.grad_accum"};
    try {  // no number of ranks could make these legal
      if ((train.micro_batch_size > 0) + (train.grad_accum > 0) + (train.global_batch_size > 0) < 2)
        resolve_batch_sizes(train.micro_batch_size, train.grad_accum, train.global_batch_size, 1);
      if (train.micro_batch_size > 0 && train.global_batch_size > 0)
        resolve_batch_sizes(train.micro_batch_size, 0, train.global_batch_size, 1);
      if (train.grad_accum > 0 && train.global_batch_size > 0)
        resolve_batch_sizes(0, train.grad_accum, train.global_batch_size, 1);
    } catch (const DeckError& error) {
      add(keys, fmt::format("{}; {}", error.what(), error.hint()));
    }
  }

  void schedule() {
    const OptimizerSection& optimizer = deck_.optimizer;
    if (optimizer.min_lr > optimizer.learning_rate)
      add({"optimizer.min_lr", "optimizer.learning_rate"},
          fmt::format(
              "optimizer.min_lr = {} is above optimizer.learning_rate = {}; legal: 0 <= min_lr "
              "<= {}",
              optimizer.min_lr, optimizer.learning_rate, optimizer.learning_rate));
    if (optimizer.decay_steps > 0 && optimizer.warmup_steps > optimizer.decay_steps)
      add({"optimizer.warmup_steps", "optimizer.decay_steps"},
          fmt::format(
              "optimizer.warmup_steps = {} is above optimizer.decay_steps = {}; nearest legal: {}",
              optimizer.warmup_steps, optimizer.decay_steps, optimizer.decay_steps));
    decay();
    const std::int64_t last = profile_range(deck_.train.profile).last;
    if (last > deck_.train.max_steps)
      add({"train.profile", "train.max_steps"},
          fmt::format("train.profile ends at step {}, after train.max_steps = {}", last,
                      deck_.train.max_steps));
    const RunSection& run = deck_.run;
    if (run.walltime > 0 && run.walltime_margin >= run.walltime)
      add({"run.walltime", "run.walltime_margin"},
          fmt::format("run.walltime = {0} leaves no time to train, because the last save begins "
                      "run.walltime_margin = {1} before its end; raise run.walltime, or lower the "
                      "margin: run.walltime_margin={2:.0f}",
                      format_hms(run.walltime), format_hms(run.walltime_margin),
                      std::floor(run.walltime / 4)));
  }

  void decay() {
    const OptimizerSection& optimizer = deck_.optimizer;
    const bool named = optimizer.decay_steps > 0;
    const std::int64_t end = named ? optimizer.decay_steps : deck_.train.max_steps;
    const std::int64_t room = end - optimizer.warmup_steps;
    if (optimizer.schedule == "wsd" && room >= 0 && optimizer.wsd_decay_steps > room)
      add({"optimizer.wsd_decay_steps", "optimizer.decay_steps", "optimizer.warmup_steps"},
          fmt::format("optimizer.wsd_decay_steps = {} does not fit between the warm-up (step {}) "
                      "and {} = {}; nearest legal: {}",
                      optimizer.wsd_decay_steps, optimizer.warmup_steps,
                      named ? "optimizer.decay_steps" : "train.max_steps", end, room));
  }

  void averages() {
    if (deck_.eval.ema && deck_.train.ema == 0)
      add({"eval.ema", "train.ema"},
          "--ema and eval.ema use averaged weights, which a run has only if it is trained with "
          "train.ema above 0, for example train.ema=0.999; here it is 0. Leave --ema out");
  }

  void freezing() {
    const TrainSection& train = deck_.train;
    if (train.freeze.empty() && !train.unfreeze.empty() && !deck::has_adapters(deck_))
      add({"train.unfreeze", "train.freeze"},
          "train.unfreeze makes exceptions to train.freeze, which is not given");
    if (train.frozen_precision == FrozenPrecision::master) return;
    if (train.frozen_precision != FrozenPrecision::bf16) return quantised_base();
    if (train.freeze.empty() && !deck::has_adapters(deck_))
      add({"train.frozen_precision", "train.freeze"},
          "train.frozen_precision = \"bf16\" is for parameters that are not trained, but all are: "
          "neither train.freeze nor model.lora is given");
    if (train.precision != TrainPrecision::bf16_mixed &&
        train.precision != TrainPrecision::bf16_true)
      add({"train.frozen_precision", "train.precision"},
          fmt::format(
              "train.frozen_precision = \"bf16\" is for models that compute with bf16 weights, not "
              "for train.precision = \"{}\"; nearest legal: train.precision = \"bf16-mixed\"",
              name_of(train.precision)));
  }

  /// A quantised base has no other copy than the checkpoint that it came from.
  void quantised_base() {
    const std::string given =
        fmt::format("train.frozen_precision = \"{}\"", name_of(deck_.train.frozen_precision));
    if (!deck::has_adapters(deck_))
      add({"train.frozen_precision", "model.lora.rank"},
          given +
              " quantises the weights beside which adapters are trained, but model.lora.rank is "
              "0; set it to 16, for example");
    if (deck_.checkpoint.init_map().empty() && deck_.checkpoint.init_run().empty())
      add({"train.frozen_precision", "checkpoint.init_from"},
          given +
              " quantises weights of a base, but checkpoint.init_from names none; set it to the "
              "run "
              "of `choir import` or of an earlier training, for example "
              "checkpoint.init_from=runs/base");
    if (deck_.checkpoint.store_base)
      add({"train.frozen_precision", "checkpoint.store_base"},
          given +
              " keeps no original of the quantised weights that checkpoint.store_base = true "
              "could store; leave it out");
  }

  void warm_start() {
    const CheckpointSection& checkpoint = deck_.checkpoint;
    if (!checkpoint.init_map().empty() && !checkpoint.init_take.empty())
      add({"checkpoint.init_take", "checkpoint.init_from"},
          "checkpoint.init_take is for a single checkpoint.init_from; with several, use their "
          "patterns and checkpoint.init_skip");
    if (!checkpoint.init_map().empty() || !checkpoint.init_run().empty()) return;
    for (const auto& [key, patterns] : {std::pair("init_take", &checkpoint.init_take),
                                        std::pair("init_skip", &checkpoint.init_skip)})
      if (!patterns->empty())
        add({std::string("checkpoint.") + key, "checkpoint.init_from"},
            fmt::format("checkpoint.{} selects from checkpoint.init_from, which is not given; set "
                        "it, for example checkpoint.init_from=runs/base, or leave {} out",
                        key, key));
  }

  void device() {
    const RequestedTransport transport = deck_.parallel.transport;
    if (deck_.device == RequestedDevice::cuda && deck_.train.precision == TrainPrecision::fp64)
      add({"device", "train.precision"},
          "device = \"cuda\" does not support train.precision = \"fp64\", which stays on the CPU; "
          "set device = \"cpu\", or another precision");
    if (deck_.device == RequestedDevice::cpu && needs_gpu(transport))
      add({"parallel.transport", "device"},
          fmt::format("parallel.transport = \"{}\" is for memory of GPUs, not for device = "
                      "\"cpu\"; legal there: auto, mpi, node",
                      name_of(transport)));
    if (deck_.device == RequestedDevice::cpu && deck_.parallel.share_device)
      add({"parallel.share_device", "device"},
          "parallel.share_device is for device = \"cuda\", not \"cpu\"; remove one");
    if (!deck_.train.time_products || !deck_.given("train.time_products")) return;
    if (deck_.device == RequestedDevice::cpu)
      add({"train.time_products", "device"},
          "train.time_products is for device = \"cuda\", not \"cpu\"; remove one");
    if (deck_.train.reproducible)
      add({"train.time_products", "train.reproducible"},
          "train.time_products selects algorithms by timing, so the bits differ between runs, "
          "which train.reproducible = true excludes; remove one");
  }

  /// Keys of other rules, and what the rule needs.
  void optimizer() {
    const UpdateRule& rule = update_rule(deck_.optimizer.name);
    std::map<std::string, std::vector<const UpdateRule*>> readers;
    for (const UpdateRule* other : update_rules()) {
      for (const std::string_view name : other->keys())
        readers[fmt::format("optimizer.{}", name)].push_back(other);
      for (const Key& own : other->own_keys().keys()) readers[own.path].push_back(other);
    }
    for (const auto& [key, rules] : readers) {
      if (std::ranges::find(rules, &rule) != rules.end() || !deck_.given(key)) continue;
      std::string names;
      for (const UpdateRule* reader : rules)
        names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", reader->name());
      add({key, "optimizer.name"},
          fmt::format("{} is for optimizer.name = {}, not \"{}\"; leave it out", key, names,
                      rule.name()));
    }
    const TrainPrecision precision = deck_.train.precision;
    if (!rule.needs_wide_masters().empty() && precision == TrainPrecision::bf16_true)
      add({"optimizer.name", "train.precision"},
          fmt::format("optimizer.name = \"{}\" needs {}, not train.precision = \"bf16-true\"; "
                      "nearest legal: \"bf16-mixed\"",
                      rule.name(), rule.needs_wide_masters()));
    const OffloadChoice offload = deck_.parallel.offload;
    if (!rule.needs_masters_on_device().empty() && offload != OffloadChoice::none &&
        (precision_of(name_of(precision)).has_copy() || offload == OffloadChoice::all))
      add({"optimizer.name", "parallel.offload"},
          fmt::format("optimizer.name = \"{}\" needs {}, but parallel.offload = \"{}\" keeps the "
                      "weights of train.precision = \"{}\" outside of the device; nearest legal: "
                      "offload = \"none\"",
                      rule.name(), rule.needs_masters_on_device(), name_of(offload),
                      name_of(precision)));
  }

  std::vector<KeyProblem> take() { return std::move(problems_); }

 private:
  const Deck& deck_;
  std::vector<KeyProblem> problems_;
};

bool is_in(const std::string& key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool has(const ModelFamily& family, const std::string& key) {
  return family.keys().find(key) != nullptr;
}

}  // namespace

bool deck::is_for_cuda(const std::string& key) {
  return is_in(key, {"train.cuda_graph", "train.programmatic_dependent_launch",
                     "train.time_products", "parallel.share_device"});
}

bool deck::concerns(const FamilyTable& table, const ModelFamily& family, const std::string& key) {
  if (is_in(key, {"train.grad_accum", "train.micro_batch_size", "train.global_batch_size"}))
    return family.fixed_shape();
  if (key == "train.micro_batches") return !family.fixed_shape();
  const auto& all = table.all();
  return has(family, key) ||
         std::none_of(all.begin(), all.end(), [&](const auto* any) { return has(*any, key); });
}

std::vector<KeyProblem> deck::check_family(const Deck& deck) {
  const FamilyTable& table = deck.families.table();
  const ModelFamily& own = deck.family();
  std::vector<KeyProblem> problems;
  for (const auto& [key, origin] : deck.origins) {
    if (!deck.given(key) || concerns(table, own, key)) continue;
    std::vector<std::string> others;
    for (const ModelFamily* family : table.all())
      if (concerns(table, *family, key)) others.push_back(fmt::format("\"{}\"", family->name()));
    problems.push_back(
        {{key, "model.type"},
         fmt::format("{} is for model.type = {}, not \"{}\"; leave it out{}", key,
                     join(others, " or "), own.name(),
                     key.find("batch") != std::string::npos && has(own, "data.batch_duration")
                         ? " (data.batch_duration is its batch, in seconds of audio)"
                         : "")});
  }
  return problems;
}

std::vector<KeyProblem> deck::check(const Deck& deck) {
  Checks checks(deck);
  const auto add = [&](std::vector<KeyProblem> problems) {
    for (KeyProblem& problem : problems)
      checks.add(std::move(problem.keys), std::move(problem.text));
  };
  const ModelFamily& family = deck.family();
  add(deck::check_family(deck));
  add(family.check(deck));
  add(deck::check_parallel(deck));
  if (family.fixed_shape()) checks.batch();
  checks.schedule();
  checks.optimizer();
  checks.averages();
  checks.freezing();
  checks.warm_start();
  checks.device();
  add(deck::check_faults(deck));
  return checks.take();
}

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
    if (chunks > 1 && parallel.schedule != ScheduleKind::interleaved)
      add({"parallel.virtual_stages", "parallel.schedule"},
          fmt::format("parallel.virtual_stages = {} is for parallel.schedule = \"interleaved\", "
                      "\"{}\" has one piece a stage; nearest legal: virtual_stages = 1",
                      chunks, name_of(parallel.schedule)));
    if (chunks > 1 && stages == 1)
      add({"parallel.virtual_stages", "parallel.pipeline"},
          fmt::format("parallel.virtual_stages = {} shares layers among stages of a pipeline, but "
                      "parallel.pipeline = 1; nearest legal: virtual_stages = 1, or pipeline = 2",
                      chunks));
  }

  void offload() {
    const ParallelSection& parallel = deck_.parallel;
    if (parallel.offload == OffloadChoice::all && parallel.zero != 3)
      add({"parallel.offload", "parallel.zero"},
          fmt::format("parallel.offload = \"all\" needs parallel.zero = 3, which gathers "
                      "parameters around their use, not {}; nearest legal: zero = 3 (on one rank, "
                      "too), or offload = \"optimizer\"",
                      parallel.zero));
    if (parallel.offload_gradients && parallel.zero < 2)
      add({"parallel.offload_gradients", "parallel.zero"},
          fmt::format("parallel.offload_gradients = true needs parallel.zero = 2 or 3, which keep "
                      "slices of gradients beside those of a few blocks, not {}; nearest legal: "
                      "zero = 2 (on one rank, too), or offload_gradients = false",
                      parallel.zero));
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
  checks.offload();
  return checks.take();
}

}  // namespace choir
