#include "src/train/step/loss_table.hpp"

#include <fmt/core.h>

#include <numeric>
#include <string>

#include "kernels/sums/sums.hpp"

namespace choir {

LossTable::LossTable(Device& device, std::size_t terms, std::int64_t places)
    : device_(&device),
      terms_(static_cast<std::int64_t>(terms)),
      places_(places),
      memory_(device, (2 * terms * static_cast<std::size_t>(places + 1) + 1) * sizeof(double)) {}

TensorView LossTable::part(std::int64_t first, std::int64_t count) const {
  const TensorView all{memory_.data(), DType::f64, {elements() + 1 + 2 * terms_}};
  return all.slice(first, count);
}

TensorView LossTable::sums() const {
  return part(elements() + 1, terms_);
}

TensorView LossTable::counts() const {
  return part(elements() + 1 + terms_, terms_);
}

TensorView LossTable::hashes() const {
  return part(elements(), 1);
}

void LossTable::begin(const Stream& stream, const double* hash) const {
  ops::zero(stream, part(0, elements()));
  stream.copy(hashes().data, hash, sizeof *hash);
}

LossSums LossTable::of(std::int64_t place) const {
  return {.sums = row(0).as<double>() + place,
          .counts = row(terms_).as<double>() + place,
          .stride = places_,
          .terms = static_cast<std::size_t>(terms_)};
}

void LossTable::reduce(const Stream& stream, std::initializer_list<Communicator*> ranks,
                       Communicator& alike) const {
  for (Communicator* along : ranks)
    if (along->size() > 1)
      along->all_reduce(memory_.data(), static_cast<std::size_t>(elements() + 1), DType::f64,
                        ReduceOp::sum);
  if (alike.size() > 1) alike.all_reduce(hashes().data, 1, DType::f64, ReduceOp::sum);
  for (std::int64_t t = 0; t < terms_; ++t) {
    ops::tree_sum(stream, row(t), sums().slice(t, 1));
    ops::tree_sum(stream, row(terms_ + t), counts().slice(t, 1));
  }
}

std::vector<double> LossTable::counted(std::size_t term) const {
  std::vector<double> counts(static_cast<std::size_t>(places_));
  const TensorView from = row(terms_ + static_cast<std::int64_t>(term));
  device_->copy_to_host(counts.data(), from.data, from.bytes());
  return counts;
}

NumericError miscount_error(const Miscount& of) {
  if (of.term < 0)
    return NumericError(
        fmt::format("step {}: the ranks announce different numbers of targets", of.step),
        "the data of the ranks disagree about the global batch: report it");
  const auto term = static_cast<std::size_t>(of.term);
  const std::string& name = of.terms[term].name;
  const double counted = std::accumulate(of.counted.begin(), of.counted.end(), 0.0);
  const double announced = targets_of_terms(of.terms, of.announced.all)[term];
  std::string text = fmt::format(
      "step {}: the model has used {} targets of the term \"{}\" of the loss, but the data "
      "announced {}",
      of.step, counted, name, announced);
  const std::vector<ByTerm>& parts = of.announced.by_micro_batch;
  for (std::size_t m = 0; m < of.counted.size() && !parts.empty(); ++m) {
    const double part = m < parts.size() ? targets_of_terms(of.terms, parts[m])[term] : 0;
    if (part == of.counted[m]) continue;
    text +=
        fmt::format("; micro-batch {} of the step has {} targets, not {}", m, of.counted[m], part);
    break;
  }
  return NumericError(
      text,
      "the loss would be divided by a wrong number, so nothing was updated; the data and the model "
      "disagree about masked targets: report it, or correct the family of models");
}

}  // namespace choir
