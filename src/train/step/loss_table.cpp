#include "src/train/step/loss_table.hpp"

#include <fmt/core.h>

#include <numeric>
#include <string>

#include "kernels/sums/sums.hpp"

namespace choir {

LossTable::LossTable(Device& device, std::size_t terms, std::int64_t places, std::int64_t others)
    : device_(&device),
      terms_(static_cast<std::int64_t>(terms)),
      places_(places),
      others_(others),
      memory_(device, static_cast<std::size_t>(reduced() + 2 * terms_) * sizeof(double)) {}

TensorView LossTable::part(std::int64_t first, std::int64_t count) const {
  const TensorView all{memory_.data(), DType::f64, {reduced() + 2 * terms_}};
  return all.slice(first, count);
}

TensorView LossTable::sums() const {
  return part(reduced(), terms_);
}

TensorView LossTable::counts() const {
  return part(reduced() + terms_, terms_);
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

void LossTable::reduce(const Stream& stream, const Ranks& ranks, const TensorView& others) const {
  const bool alone = ranks.data.size() * ranks.tensor.size() * ranks.stages.size() == 1;
  const std::int64_t count = others.empty() || alone ? 0 : others.count();
  const std::int64_t all = elements() + 1 + count;
  CHOIR_CHECK(count <= others_, "{} sums beside losses with room for {}", count, others_);
  const auto sum = [&](Communicator& over, std::int64_t first, std::int64_t end) {
    const TensorView message = part(first, end - first);
    if (over.size() > 1)
      over.all_reduce(message.data, static_cast<std::size_t>(end - first), DType::f64,
                      ReduceOp::sum);
  };
  if (count > 0) ops::copy(stream, others, part(elements() + 1, count));
  sum(ranks.data, 0, all);
  sum(ranks.tensor, elements(), all);
  sum(ranks.stages, 0, all);
  if (count > 0) ops::copy(stream, part(elements() + 1, count), others);
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
