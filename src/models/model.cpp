#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/models/model.hpp"

namespace choir {

ModelPieces::ModelPieces(const ModelCut& cut, std::int64_t layers)
    : units_(static_cast<int>(layers) + 2), ranges_(cut.pieces) {
  if (ranges_.empty()) ranges_.push_back({0, units_});
  int end = 0, count = 0;
  for (const UnitRange& range : ranges_) {
    CHOIR_CHECK(range.count > 0 && range.first >= end && range.end() <= units_,
                "units {} to {} of {} as a piece after unit {}", range.first, range.end(), units_,
                end);
    end = range.end();
    count += range.count;
    Piece piece{.input = range.first == 0, .head = end == units_};
    piece.first_unit = range.first;
    piece.last_unit = end - 1;
    pieces_.push_back(piece);
  }
  whole_ = count == units_;
}

const ModelPieces::Piece& ModelPieces::operator[](int index) const {
  CHOIR_CHECK(index >= 0 && index < count(), "piece {} of {}", index, count());
  return pieces_[static_cast<std::size_t>(index)];
}

bool ModelPieces::resident(int unit) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const UnitRange& range) { return range.contains(unit); });
}

void TrainedUnits::find(const ParameterSet& parameters) {
  const auto& all = parameters.all();
  const auto first =
      std::find_if(all.begin(), all.end(), [](const Parameter* p) { return p->trainable; });
  // The last unit that begins no later. A unit without parameters of its own begins at the same
  // index as the next one and needs no backward.
  const auto index = static_cast<std::size_t>(first - all.begin());
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  lowest_ = std::max(0, static_cast<int>(after - begins_.begin()) - 1);
  trained_.clear();
  for (std::size_t unit = 0; unit < begins_.size(); ++unit) {
    const std::size_t end = unit + 1 < begins_.size() ? begins_[unit + 1] : all.size();
    std::int64_t numbers = 0, trained = 0;
    for (std::size_t p = begins_[unit]; p < end; ++p) {
      numbers += all[p]->count();
      if (all[p]->trainable) trained += all[p]->count();
    }
    trained_.push_back(numbers == 0 ? 1
                                    : static_cast<double>(trained) / static_cast<double>(numbers));
  }
}

double TrainedUnits::flops(const UnitCosts& costs) const {
  double sum = 0;
  for (std::size_t unit = 0; unit < costs.size(); ++unit) {
    const double weights = unit < trained_.size() ? trained_[unit] : 1;
    sum += costs[unit] * (reach(static_cast<int>(unit)) ? 2 + weights : 1);
  }
  return sum;
}

ByTerm targets_of_terms(const std::vector<LossTerm>& terms, const ByTerm& announced) {
  if (announced.size() == terms.size()) return announced;
  ByTerm all(terms.size(), 0);
  std::size_t next = 0;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const int as = terms[t].counts_as;
    CHOIR_CHECK(as < static_cast<int>(t), "term {} counts as term {}", t, as);
    CHOIR_CHECK(as >= 0 || next < announced.size(), "targets of {} terms in a loss of {}",
                announced.size(), terms.size());
    all[t] = as >= 0 ? all[static_cast<std::size_t>(as)] : announced[next++];
  }
  CHOIR_CHECK(next == announced.size(), "targets of {} terms in a loss of {}", announced.size(),
              terms.size());
  return all;
}

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

const ModelPieces::Piece& Model::begin_forward(Pass& pass, int index, const Tensor& input) const {
  const ModelPieces::Piece& here = pieces_[index];
  CHOIR_CHECK(here.input == input.empty(), "piece {} gets {} input", index,
              input.empty() ? "no" : "an");
  if (!here.input) {
    const Shape boundary = boundary_shape(pass, here.first_unit - 1);
    CHOIR_CHECK(input.shape == boundary, "piece {} gets {}, not {}", index, to_string(input.shape),
                to_string(boundary));
  }
  pass.begin_piece(index);
  return here;
}

const ModelPieces::Piece& Model::begin_backward(Pass& pass, int index,
                                                const Tensor& d_output) const {
  const ModelPieces::Piece& here = pieces_[index];
  CHOIR_CHECK(here.head == d_output.empty(), "piece {} gets {} gradient", index,
              d_output.empty() ? "no" : "a");
  pass.begin_piece(index, true);
  return here;
}

}  // namespace choir
