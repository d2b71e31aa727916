#include "choir/nn/layers/lora.hpp"

#include <algorithm>
#include <cmath>

namespace choir {

bool Lora::adapts(std::string_view target) const {
  return rank > 0 && std::any_of(targets.begin(), targets.end(), [&](const std::string& one) {
           return one == "all" || one == target;
         });
}

double Lora::factor() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilised ? std::sqrt(r) : r);
}

Linear::Adapter Lora::of(const std::vector<std::string>& parts) const {
  Linear::Adapter adapter;
  for (const std::string& part : parts) {
    if (adapts(part)) adapter.rank = rank;
    adapter.sections.push_back(adapts(part) ? part : "");
  }
  if (parts.size() == 1) adapter.sections.clear();
  adapter.alpha = factor() * static_cast<double>(rank);
  adapter.dropout = dropout;
  return adapter;
}

bool is_adapter(std::string_view name) {
  return name.ends_with(Linear::kFactorA) || name.ends_with(Linear::kFactorB);
}

bool has_adapters(const ParameterSet& parameters) {
  const auto& all = parameters.all();
  return std::any_of(all.begin(), all.end(), [](const Parameter* p) { return is_adapter(p->name); });
}

}  // namespace choir
