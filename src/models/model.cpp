#include "choir/models/model.hpp"
#include "choir/core/error.hpp"

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
  pass.begin_piece(index);
  return here;
}

}  // namespace choir
