#include "choir/run/freezing.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "choir/nn/layers/linear.hpp"
#include "src/deck/name_patterns.hpp"

namespace choir {
namespace {

/// Refuses patterns that match only the head of a tied model: the head is the embedding, even if
/// this layout stores it twice.
void refuse_tied_head(const std::string& key, const std::vector<std::string>& patterns,
                      const std::vector<std::string>& names, const ModelConfig& model) {
  for (const std::string& pattern : patterns) {
    const bool others = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches_pattern(pattern, name);
    });
    for (const TiedNames& tied : model.family().tied(model))
      if (!others && matches_pattern(pattern, tied.alias))
        throw DeckError(
            fmt::format(
                "{}: '{}' matches only one of two tied weights, which can only be frozen together",
                key, pattern),
            fmt::format("name {} to freeze both, or set model.tied to false", tied.name));
  }
}

}  // namespace

void freeze_parameters(ParameterSet& parameters, const Freezing& freezing,
                       const ModelConfig& model) {
  const bool adapted = has_adapters(parameters);
  if (freezing.freeze.empty() && !adapted) return;
  std::vector<std::string> names, taken;
  for (const Parameter* p : parameters.all()) names.push_back(p->name);
  refuse_tied_head("train.freeze", freezing.freeze, names, model);
  refuse_tied_head("train.unfreeze", freezing.unfreeze, names, model);
  require_matches("train.freeze", freezing.freeze, names);
  require_matches("train.unfreeze", freezing.unfreeze, names);
  for (const std::string& name : names)
    if ((adapted && !is_adapter(name)) || matches_any(freezing.freeze, name)) taken.push_back(name);
  for (const std::string& pattern : freezing.unfreeze)
    if (std::none_of(taken.begin(), taken.end(),
                     [&](const std::string& name) { return matches_pattern(pattern, name); }))
      throw DeckError(
          fmt::format("train.unfreeze: '{}' matches no parameter that train.freeze freezes",
                      pattern),
          "remove it: parameters that are not frozen are trained");
  std::erase_if(taken,
                [&](const std::string& name) { return matches_any(freezing.unfreeze, name); });
  if (taken.size() == names.size())
    throw DeckError("train.freeze: every parameter is frozen, nothing is left to train",
                    "exempt some with train.unfreeze, for example [\"" + names.back() + "\"]");
  const std::set<std::string> frozen(taken.begin(), taken.end());
  parameters.freeze([&](const Parameter& p) { return frozen.contains(p.name); });
}

int units_without_backward(const Freezing& freezing, const ModelConfig& model) {
  ParameterSet parameters{TensorSplit{}};
  const std::unique_ptr<Model> described = model.family().make(model, parameters, {});
  freeze_parameters(parameters, freezing, model);
  return described->lowest_trained_unit();
}

}  // namespace choir
