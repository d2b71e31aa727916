#include "choir/models/loss_terms.hpp"

namespace choir {

double weighted_loss(const std::vector<LossTerm>& terms, const ByTerm& means,
                     const ByTerm& targets) {
  double loss = 0;
  for (std::size_t t = 0; t < terms.size(); ++t)
    if (terms.size() == 1 || targets[t] != 0) loss += terms[t].weight * means[t];
  return loss;
}

std::vector<std::pair<std::string, double>> means_by_name(const std::vector<LossTerm>& terms,
                                                          const ByTerm& means,
                                                          const ByTerm& targets) {
  std::vector<std::pair<std::string, double>> named;
  if (terms.size() == 1) return named;
  for (std::size_t t = 0; t < terms.size(); ++t)
    if (targets[t] != 0) named.emplace_back(terms[t].name, means[t]);
  return named;
}

}  // namespace choir
