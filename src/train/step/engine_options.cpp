// The options of the engine, and the factors on learning rates (optimizer.scale).

#include "src/train/step/engine_options.hpp"

#include <fmt/core.h>

#include <map>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "src/deck/name_patterns.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

std::function<double(const Parameter&)> rate_scales(const ParameterSet& parameters,
                                                    const std::vector<RateScale>& scales) {
  if (scales.empty()) return {};
  std::vector<std::string> names;
  for (const Parameter* p : parameters.all()) names.push_back(p->name);
  std::map<std::string, const RateScale*> chosen;
  for (const RateScale& scale : scales) {
    require_matches("optimizer.scale", {scale.pattern}, names);
    bool trains = false;
    for (const Parameter* p : parameters.all()) {
      if (!matches_pattern(scale.pattern, p->name)) continue;
      trains = trains || p->trainable;
      const auto [at, is_new] = chosen.emplace(p->name, &scale);
      if (!is_new)
        throw DeckError(fmt::format("optimizer.scale: '{}' and '{}' both match {}",
                                    at->second->pattern, scale.pattern, p->name),
                        "let one pattern match each parameter");
    }
    if (!trains)
      throw DeckError(
          fmt::format(
              "optimizer.scale: '{}' matches only frozen parameters, which have no learning rate",
              scale.pattern),
          "leave the pattern out, or train these parameters (train.unfreeze)");
  }
  std::map<std::string, double> factors;
  for (const auto& [name, scale] : chosen) factors[name] = scale->factor;
  return [factors](const Parameter& p) {
    const auto found = factors.find(p.tied_to != nullptr ? p.tied_to->name : p.name);
    return found == factors.end() ? 1.0 : found->second;
  };
}

std::vector<BatchShape> shapes_of(const EngineOptions& options) {
  const ModelFamily& family = options.model.family();
  if (family.fixed_shape()) return {family.shape(options.model, options.micro_batch_size)};
  if (options.shapes.empty())
    throw DeckError(
        fmt::format("model.type = \"{}\": the shapes of audio micro-batches are unknown",
                    family.name()),
        "`choir train` takes them from its data");
  return options.shapes;
}

EngineOptions engine_options(const Deck& deck, const BatchSizes& batch) {
  const OptimizerSection& o = deck.optimizer;
  EngineOptions options;
  options.model = model_of(deck);
  options.precision = precision_of(deck);
  options.seed = static_cast<std::uint64_t>(deck.run.seed);
  options.sequence = deck.parallel.sequence;
  options.context = context_way_of(deck);
  options.drops_rows = deck.family().drops_rows(deck);
  options.reproducible = deck.train.reproducible;
  options.zero = zero_of(deck);
  options.pipeline = pipeline_of(deck);
  options.offload = offload_of(deck);
  options.freezing = {.freeze = deck.train.freeze, .unfreeze = deck.train.unfreeze};
  if (deck.parallel.pipeline > 1)
    options.pipeline.forward_only = units_without_backward(options.freezing, options.model);
  options.micro_batch_size = batch.micro;
  options.micro_batches = batch.accum;
  options.optimizer = update_settings_of(deck);
  options.offload.second_moment = options.optimizer.rule->moments().size() > 1;
  for (const auto& [pattern, factor] : rate_factors(o.scale))
    options.rate_scales.push_back({pattern, factor});
  options.schedule = schedule_of(deck, batch.data_parallel);
  options.grad_clip = o.grad_clip;
  options.ema = deck.train.ema;
  options.loss_scaling = loss_scaling_of(deck);
  options.cuda_graph = deck.train.cuda_graph;
  options.dependent_launch = deck.train.programmatic_dependent_launch;
  options.lag = deck.train.steps_in_flight - 1;
  return options;
}

}  // namespace choir
