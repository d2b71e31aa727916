#include "src/lab/verify/verify_record.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/core/philox.hpp"
#include "choir/nn/parameter.hpp"
#include "src/core/text.hpp"
#include "src/run/stored_averages.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double element(const std::byte* data, DType type, std::int64_t i) {
  if (type == DType::f64) return reinterpret_cast<const double*>(data)[i];
  if (type == DType::f32) return reinterpret_cast<const float*>(data)[i];
  CHOIR_CHECK(type == DType::bf16, "masters of {}", name_of(type));
  return static_cast<float>(reinterpret_cast<const bf16*>(data)[i]);
}

/// Calls visit(index in the logical tensor, value) for each element.
template <class Visit>
void for_each(const StoredTensor& tensor, const Visit& visit) {
  std::vector<std::byte> copy;
  for (const StoredPiece& piece : tensor.pieces) {
    const auto* data = static_cast<const std::byte*>(piece.data);
    if (tensor.device != nullptr && !tensor.device->host_visible()) {
      copy.resize(static_cast<std::size_t>(piece.count) * size_of(tensor.dtype));
      tensor.device->copy_to_host(copy.data(), data, copy.size());
      data = copy.data();
    }
    for (std::int64_t i = 0; i < piece.count; ++i)
      visit(piece.first + i, element(data, tensor.dtype, i));
  }
}

std::vector<StoredTensor> with_gradients(std::vector<StoredTensor> tensors,
                                         std::vector<StoredTensor> more) {
  std::erase_if(tensors, [](const StoredTensor& t) {
    return t.name == kFirstAverage || t.consume ||
           (t.name.starts_with("state/") && !t.name.starts_with(kRunningStatistics));
  });
  for (StoredTensor& tensor : more) tensors.push_back(std::move(tensor));
  return tensors;
}

/// A random 64-bit word for each boundary between elements.
std::uint64_t boundary(std::int64_t at) {
  const PhiloxBlock words = philox_at({0x7e57u, 0x711eu}, static_cast<std::uint64_t>(at));
  return (std::uint64_t{words[1]} << 32) | words[0];
}

double relative(double a, double b, double scale) {
  const double distance = std::abs(a - b) / scale;
  return std::isnan(distance) ? kInfinity : distance;
}

double scale_of(double a) {
  return std::max(1.0, std::abs(a));
}

void share(Communicator& ranks, std::vector<double>& values) {
  std::uint64_t count = values.size();
  ranks.broadcast(&count, sizeof count, 0);
  values.resize(count);
  ranks.broadcast(values.data(), count * sizeof(double), 0);
}

}  // namespace

std::string_view name_of(Quantity quantity) {
  constexpr std::array<std::string_view, kQuantities> kNames{
      "loss", "gradient norm", "parameter", "gradient", "moment", "state"};
  return kNames[static_cast<std::size_t>(quantity)];
}

std::vector<StoredTensor> held_tensors(Engine& engine) {
  Progress progress;
  return with_gradients(tensors_to_load(engine, progress), gradient_tensors(engine, false));
}

std::vector<StoredTensor> owned_tensors(Engine& engine) {
  Progress progress;
  return with_gradients(tensors_to_save(engine, progress), gradient_tensors(engine, true));
}

Quantity quantity_of(const RunRecord::Tensor& tensor) {
  if (tensor.name.starts_with("parameters/") || tensor.name.starts_with(kAverages))
    return Quantity::parameter;
  if (tensor.name.starts_with(kRunningStatistics)) return Quantity::state;
  return tensor.name.starts_with("gradients/") ? Quantity::gradient : Quantity::moment;
}

void RunRecord::take(Engine& engine) {
  tensors.clear(), values.clear();
  std::vector<double> largest;
  for (const StoredTensor& stored : held_tensors(engine)) {
    const auto first = static_cast<std::int64_t>(values.size());
    tensors.push_back(
        {stored.name, choir::to_string(stored.shape), first, stored.shape.count(), 1});
    values.resize(values.size() + static_cast<std::size_t>(stored.shape.count()));
    double most = 0;
    for_each(stored, [&](std::int64_t i, double value) {
      values[static_cast<std::size_t>(first + i)] = value;
      most = std::max(most, std::abs(value));
    });
    largest.push_back(most);
  }
  // The two moments have separate scales.
  const auto kind = [](const Tensor& t) {
    return t.name.substr(0, t.name.starts_with("optimizer/") ? 12 : 5);
  };
  constexpr double kSmall = 1e-3;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Quantity quantity = quantity_of(tensors[i]);
    if (quantity == Quantity::parameter || quantity == Quantity::state) {
      tensors[i].scale = std::max(1.0, largest[i]);
      continue;
    }
    double of_kind = 0;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (kind(tensors[k]) == kind(tensors[i])) of_kind = std::max(of_kind, largest[k]);
    tensors[i].scale = std::max(largest[i], kSmall * of_kind);
    if (tensors[i].scale == 0) tensors[i].scale = 1;
  }
}

void RunRecord::share(Communicator& ranks) {
  std::string text;
  for (const Tensor& t : tensors) text += fmt::format("{}|{}|{}\n", t.name, t.shape, t.count);
  share_text(ranks, text);
  std::vector<double> scales;
  for (const Tensor& t : tensors) scales.push_back(t.scale);
  choir::share(ranks, scales);
  tensors.clear();
  std::int64_t first = 0;
  for (const std::string& line : split(text, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> parts = split(line, '|');
    tensors.push_back(
        {parts.at(0), parts.at(1), first, std::stoll(parts.at(2)), scales.at(tensors.size())});
    first += tensors.back().count;
  }
  for (std::vector<double>* list : {&losses, &norms, &values}) choir::share(ranks, *list);
}

RunDistance::RunDistance(const RunRecord& reference)
    : losses(reference.losses.size()),
      norms(reference.norms.size()),
      tensors(reference.tensors.size()),
      tiling(reference.tensors.size()) {}

void RunDistance::add_step(const RunRecord& reference, std::size_t step, const StepResult& result) {
  const double loss = reference.losses[step], norm = reference.norms[step];
  losses[step] = relative(loss, result.updated ? result.loss : kInfinity, scale_of(loss));
  norms[step] = relative(norm, result.grad_norm, scale_of(norm));
}

void RunDistance::add_tensors(const RunRecord& reference, const std::vector<StoredTensor>& held,
                              const std::vector<StoredTensor>& owned) {
  CHOIR_CHECK(held.size() == tensors.size() && owned.size() == tensors.size(),
              "{} tensors, the reference has {}", held.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const RunRecord::Tensor& its = reference.tensors[i];
    for (const StoredTensor* tensor : {&held[i], &owned[i]})
      CHOIR_CHECK(tensor->name == its.name && choir::to_string(tensor->shape) == its.shape,
                  "'{}' {} where the reference has '{}' {}", tensor->name,
                  choir::to_string(tensor->shape), its.name, its.shape);
    const double* values = reference.values.data() + its.first;
    for_each(held[i], [&](std::int64_t e, double value) {
      tensors[i] = std::max(tensors[i], relative(values[e], value, its.scale));
    });
    std::uint64_t digest = 0;
    for (const StoredPiece& piece : owned[i].pieces)
      digest += boundary(piece.first) - boundary(piece.first + piece.count);
    tiling[i] = static_cast<std::int64_t>(digest);
  }
}

void RunDistance::combine(Communicator& ranks) {
  for (std::vector<double>* list : {&losses, &norms, &tensors})
    ranks.all_reduce(list->data(), list->size(), DType::f64, ReduceOp::max);
  // The sums wrap around intentionally.
  ranks.all_reduce(tiling.data(), tiling.size(), DType::i64, ReduceOp::sum);
}

// Pieces are intervals. Each adds its first boundary and subtracts its last. If only the first and
// last boundaries of the tensor remain in the sum, every element is in exactly one piece.
std::vector<std::string> RunDistance::badly_tiled(const RunRecord& reference) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tiling.size(); ++i)
    if (static_cast<std::uint64_t>(tiling[i]) != boundary(0) - boundary(reference.tensors[i].count))
      names.push_back(reference.tensors[i].name);
  return names;
}

RunDistance distance_of(const RunRecord& reference, const RunRecord& other) {
  RunDistance distance(reference);
  for (std::size_t s = 0; s < reference.losses.size(); ++s)
    distance.add_step(reference, s, {.loss = other.losses.at(s), .grad_norm = other.norms.at(s)});
  for (std::size_t i = 0; i < reference.tensors.size(); ++i) {
    const RunRecord::Tensor& a = reference.tensors[i];
    const RunRecord::Tensor& b = other.tensors.at(i);
    CHOIR_CHECK(a.name == b.name && a.shape == b.shape, "'{}' and '{}'", a.name, b.name);
    for (std::int64_t e = 0; e < a.count; ++e)
      distance.tensors[i] =
          std::max(distance.tensors[i],
                   relative(reference.values[static_cast<std::size_t>(a.first + e)],
                            other.values[static_cast<std::size_t>(b.first + e)], a.scale));
  }
  return distance;
}

}  // namespace choir
