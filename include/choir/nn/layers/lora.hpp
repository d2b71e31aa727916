#pragma once
// Low-rank adaptation (Hu et al. 2021) of the linear layers of transformer blocks: the options of a
// model, and the adapters of each layer that follow from them.
#include <string>
#include <string_view>
#include <vector>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// The parts of a block that can be adapted, in the order of a block. A part that a block does not
/// have (gate without a gated activation) is ignored.
inline constexpr std::string_view kLoraTargets[] = {"q", "k", "v", "o", "gate", "up", "down"};

struct Lora {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16;      ///< B A is multiplied by alpha / rank
  double dropout = 0;     ///< on the input of A, in [0, 1)
  /// The factor is alpha / sqrt(rank) (Kalajdzievski 2023).
  bool rank_stabilised = false;
  std::vector<std::string> targets{"all"};  ///< elements of kLoraTargets, or "all"

  bool adapts(std::string_view target) const;
  /// The factor of B A.
  double factor() const;
  /// The adapter of a layer whose weight consists of these parts side by side: a pair of factors
  /// for each part that is a target.
  Linear::Adapter of(const std::vector<std::string>& parts) const;
};

/// True if this is the name of a factor of an adapter.
bool is_adapter(std::string_view name);
bool has_adapters(const ParameterSet& parameters);

}  // namespace choir
