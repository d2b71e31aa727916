#pragma once
// The loss of a model is a weighted sum of named terms. Each term is the mean over its own targets
// in the global batch, however these are spread over micro-batches and ranks; a rank without
// targets of a term contributes nothing to it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/tensor.hpp"
#include "choir/ops/step_control.hpp"

namespace choir {

struct LossTerm {
  std::string name;  ///< as in logs: "text_loss"
  double weight = 1;
};

/// One number for each term, in the order of ModelFamily::loss_terms; with a single term simply a
/// number. Allocates nothing.
class ByTerm {
 public:
  ByTerm() = default;
  ByTerm(double only) : values_{only}, size_(1) {}
  ByTerm(std::size_t terms, double each) : size_(terms) {
    CHOIR_CHECK(terms <= values_.size(), "a loss of {} terms", terms);
    std::fill_n(values_.begin(), terms, each);
  }

  std::size_t size() const { return size_; }
  double operator[](std::size_t term) const { return values_.at(term); }
  double& operator[](std::size_t term) { return values_.at(term); }
  /// The number of the first term, whose targets throughput counts.
  double first() const { return values_[0]; }
  double* begin() { return values_.data(); }
  double* end() { return values_.data() + size_; }
  const double* begin() const { return values_.data(); }
  const double* end() const { return values_.data() + size_; }

  /// Adds term by term; an empty value counts as zeros.
  ByTerm& operator+=(const ByTerm& other) {
    for (std::size_t t = 0; t < other.size_; ++t) values_[t] += other.values_[t];
    size_ = std::max(size_, other.size_);
    return *this;
  }
  friend bool operator==(const ByTerm&, const ByTerm&) = default;

 private:
  std::array<double, ops::kMostLossTerms> values_{};
  std::size_t size_ = 0;
};

/// The losses of one term, [n], in the result of a model's head (Model::forward).
inline TensorView losses_of_term(const TensorView& losses, std::size_t term, std::size_t terms) {
  const auto count = static_cast<std::int64_t>(terms);
  const std::int64_t n = losses.count() / count;
  return losses.reshaped({count * n}).slice(static_cast<std::int64_t>(term) * n, n);
}

/// The weighted sum of the terms' means. If there are several terms, those without targets are left
/// out.
double weighted_loss(const std::vector<LossTerm>& terms, const ByTerm& means,
                     const ByTerm& targets);

/// The means by name, as logs show them beside the loss: the terms with targets of a loss that has
/// several terms.
std::vector<std::pair<std::string, double>> means_by_name(const std::vector<LossTerm>& terms,
                                                          const ByTerm& means,
                                                          const ByTerm& targets);

}  // namespace choir
