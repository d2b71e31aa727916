#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/run_choices.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

Precision precision_of(std::string_view name) {
  using enum DType;  // hides the element types of the same names
  switch (precision_named(name)) {
    case TrainPrecision::fp64:
      return {f64, f64, f64, f64, f64, f64};
    case TrainPrecision::fp32:
      return {f32, f32, f32, f32, f32, f32};
    case TrainPrecision::bf16_mixed:
      return {bf16, f32, f32, f32, f32, f32};
    case TrainPrecision::bf16_true:
      return {bf16, bf16, f32, f32, f32, bf16};
    case TrainPrecision::fp16_mixed:
      return {f16, f32, f32, f32, f32, f32};
  }
  return {};
}

Precision with_narrow_frozen(Precision precision) {
  precision.frozen = precision.compute;
  return precision;
}

Precision with_packing(Precision precision, Packing packing) {
  precision.packing = packing;
  return precision;
}

Precision with_narrow_moments(Precision precision) {
  CHOIR_CHECK(precision.gradient == DType::f32, "bf16 moments beside {} gradients",
              name_of(precision.gradient));
  precision.moment = DType::bf16;
  return precision;
}

namespace {

TensorView window(void* base, DType dtype, std::int64_t first, const Shape& shape) {
  if (base == nullptr) return {nullptr, dtype, shape};
  auto* bytes = static_cast<std::byte*>(base);
  return {bytes + static_cast<std::size_t>(first) * size_of(dtype), dtype, shape};
}

template <class T>
T rounded(double value) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
void fill(const Parameter& parameter, std::uint64_t seed, std::int64_t first, std::int64_t n,
          T* out) {
  std::vector<ShardRun> runs = shard_runs(parameter);
  for (ShardRun& run : runs) {  // the part in [first, first + n), relative to first
    const std::int64_t begin = std::max(run.local, first);
    const std::int64_t end = std::min(run.local + run.count, first + n);
    run = {run.logical + begin - run.local, begin - first, std::max<std::int64_t>(0, end - begin),
           run.owned};
  }
  std::erase_if(runs, [](const ShardRun& run) { return run.count == 0; });
  if (parameter.init.kind != Init::Kind::normal) {
    const T value(parameter.init.kind == Init::Kind::ones ? 1.0f : 0.0f);
    for (const ShardRun& run : runs) std::fill_n(out + run.local, run.count, value);
    return;
  }
  const PhiloxKey key =
      philox_key(seed, "init/" + (parameter.tied_to ? *parameter.tied_to : parameter).name);
  const double std = parameter.init.std;
  const auto write = [&](const ShardRun& run, std::int64_t i) {
    const auto element = static_cast<std::uint64_t>(run.logical + i);
    out[run.local + i] = rounded<T>(std * normal_at(key, element));
  };
  // There are few long runs, or one in every row.
  const bool many = runs.size() > 16;
#pragma omp parallel for schedule(static) if (many)
  for (const ShardRun& run : runs) {
#pragma omp parallel for schedule(static) if (!many)
    for (std::int64_t i = 0; i < run.count; ++i) write(run, i);
  }
}

}  // namespace

int ParameterSet::begin_bucket(std::string name, bool resident) {
  std::vector<Bucket>& list = resident ? buckets_ : elsewhere_;
  order_.push_back({resident, list.size()});
  list.push_back({});
  list.back().name = std::move(name);
  base_ = current_ = order_.size() - 1;
  return resident ? static_cast<int>(list.size()) - 1 : -1;
}

void ParameterSet::begin_tile() {
  CHOIR_CHECK(!order_.empty(), "a tile before the first bucket");
  const Bucket& base = at(order_[base_]);
  const int tile = at(order_[current_]).tile + 1;
  const std::size_t kept = base_;
  begin_bucket(fmt::format("{}.tile.{}", base.name, tile), order_[base_].resident);
  base_ = kept;
  at(order_[current_]).tile = tile;
}

Parameter& ParameterSet::add(Parameter parameter) {
  CHOIR_CHECK(!order_.empty(), "parameter '{}' before the first bucket", parameter.name);
  const bool follows = parameter.shard.tile > 0;  // follows a tile of the same name
  for (const auto* list : {&all_, &copies_})
    for (std::size_t i = 0; !follows && i < list->size(); ++i)
      CHOIR_CHECK((*list)[i]->name != parameter.name, "two parameters are called '{}'",
                  parameter.name);
  if (alone_) {
    CHOIR_CHECK(parameter.shard.tiles == 1, "'{}' of one rank in tiles", parameter.name);
    parameter.shard = {.alignment = parameter.shard.alignment, .partial = {Axis::tensor}};
  }
  const Place place = order_[current_];
  parameter.bucket = place.resident ? static_cast<int>(place.index) : -1;
  parameter.split = tensor_;
  parameter.local = local_shape(parameter.shape, parameter.shard, tensor_);
  auto& memory = place.resident ? parameters_ : described_;
  memory.push_back(std::move(parameter));
  Parameter& added = memory.back();
  at(place).parameters.push_back(&added);
  if (follows)
    join_tiles(memory);
  else
    (added.tied_to ? copies_ : all_).push_back(&added);
  return added;
}

RunningStatistics& ParameterSet::add_running_statistics(const std::string& name,
                                                        const Parameter& weight) {
  CHOIR_CHECK(weight.shape.rank() == 1, "running statistics of '{}' {}", weight.name,
              to_string(weight.shape));
  running_.push_back(
      {.name = name, .weight = &weight, .mean = {}, .variance = {}, .records = {}, .frames = {}});
  return running_.back();
}

// The previous tile is close to the last parameter, because tiles are added layer by layer.
void ParameterSet::join_tiles(std::deque<Parameter>& memory) {
  Parameter& added = memory.back();
  const auto last = std::find_if(memory.rbegin() + 1, memory.rend(), [&](const Parameter& p) {
    return p.name == added.name && p.shard.tile + 1 == added.shard.tile;
  });
  CHOIR_CHECK(last != memory.rend() && last->next_tile == nullptr && last->shape == added.shape &&
                  last->shard.tiles == added.shard.tiles && added.shard.tile < added.shard.tiles,
              "'{}': tile {} of {} does not follow on the one before", added.name,
              added.shard.tile + 1, added.shard.tiles);
  last->next_tile = &added;
}

const Bucket& ParameterSet::bucket_with(const Parameter* parameter) const {
  for (const Place& place : order_) {
    const auto& list = at(place).parameters;
    if (std::find(list.begin(), list.end(), parameter) != list.end()) return at(place);
  }
  throw Error(ExitCode::other, fmt::format("'{}' is in no bucket", parameter->name));
}

std::vector<const Bucket*> ParameterSet::model_buckets() const {
  std::vector<const Bucket*> list;
  for (const Place& place : order_)
    if (!at(place).beside &&
        (at(place).parameters.empty() || !at(place).parameters.front()->tied_to))
      list.push_back(&at(place));
  return list;
}

void ParameterSet::freeze(const std::function<bool(const Parameter&)>& chosen) {
  for (auto* memory : {&parameters_, &described_})
    for (Parameter& p : *memory) {
      const Parameter& named = p.tied_to ? *p.tied_to : p;
      if (chosen(named)) p.trainable = false;
    }
}

// Elements are numbered as if everything were trained, so that frozen parameters do not change the
// numbers.
void ParameterSet::number_elements() {
  std::int64_t position = 0;
  for (const Place& where : order_) {
    Bucket& bucket = at(where);
    std::stable_partition(bucket.parameters.begin(), bucket.parameters.end(),
                          [](const Parameter* p) { return p->decay; });
    for (Parameter* p : bucket.parameters) {
      if (p->tied_to) continue;
      p->position = position;
      position += round_up(p->count(), kAlignment);
    }
  }
}

namespace {

constexpr std::int64_t kPackBlock = 64;

/// Decided by the logical tensor alone, and thus the same in every layout. Kernels of depthwise
/// convolutions have an odd width.
bool can_be_packed(const Parameter& p) {
  constexpr std::int64_t kMultiple = 8;
  return !p.trainable && p.use == Use::hidden && p.tied_to == nullptr && p.shape.rank() == 2 &&
         p.shape[0] % kMultiple == 0 && p.shape[1] % kMultiple == 0 && p.count() % kPackBlock == 0;
}

/// Refuses a part that would have other blocks than the whole matrix, and therefore other values.
void require_whole_blocks(const Parameter& p) {
  std::int64_t count = 0;
  bool whole = true;
  for (const ShardRun& run : joined_runs(p)) {
    whole = whole && run.logical % kPackBlock == 0 && run.local % kPackBlock == 0 &&
            run.count % kPackBlock == 0;
    count += run.count;
  }
  if (whole && count == p.local_count()) return;
  throw DeckError(
      fmt::format(
          "train.frozen_precision: this rank's part {} of '{}' {} does not consist of whole "
          "blocks of {} elements, in which frozen weights are quantised",
          to_string(p.local), p.name, to_string(p.shape), kPackBlock),
      "choose parallel.tensor so that each rank has a multiple of 64 columns, or set "
      "train.frozen_precision to \"bf16\"");
}

}  // namespace

// A layer is a bucket with those of its tiles.
void ParameterSet::pack() {
  bool any = false, adapted = false;
  for (const Place& where : order_) {
    const std::vector<Parameter*>& list = at(where).parameters;
    if (at(where).tile == 0)
      adapted = std::any_of(list.begin(), list.end(),
                            [](const Parameter* p) { return p->use == Use::adapter; });
    for (Parameter* p : list) {
      p->packed = adapted && can_be_packed(*p);
      any = any || p->packed;
      if (p->packed) require_whole_blocks(*p);
    }
  }
  if (!any)
    throw DeckError(
        "train.frozen_precision: no weight can be quantised, which is for frozen matrices with a "
        "multiple of 64 elements in layers with adapters",
        "set train.frozen_precision to \"master\", or use a wider model");
}

ParameterSet::Place ParameterSet::part(const Place& from, const char* suffix,
                                       bool (*apart)(const Parameter*)) {
  std::vector<Parameter*>& all = at(from).parameters;
  const auto count = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), apart));
  if (count == 0 || count == all.size()) return from;
  std::vector<Bucket>& list = from.resident ? buckets_ : elsewhere_;
  const Place to{from.resident, list.size()};
  Bucket bucket;
  bucket.name = at(from).name + suffix;
  bucket.tile = at(from).tile;
  bucket.beside = true;
  std::copy_if(all.begin(), all.end(), std::back_inserter(bucket.parameters), apart);
  std::erase_if(all, apart);
  at(from).frozen = static_cast<int>(to.index);
  if (to.resident)
    for (Parameter* p : bucket.parameters) p->bucket = static_cast<int>(to.index);
  list.push_back(std::move(bucket));
  order_.push_back(to);
  return to;
}

// Frozen parameters go after all others, so that the numbers of those do not change, and packed
// parameters go after other frozen ones.
void ParameterSet::part_frozen() {
  const auto frozen = [](const Parameter* p) { return !p->trainable; };
  const auto packed = [](const Parameter* p) { return p->packed; };
  const auto all = [&](const Place& place, const auto& what) {
    const std::vector<Parameter*>& list = at(place).parameters;
    return !list.empty() && std::all_of(list.begin(), list.end(), what);
  };
  const std::vector<Place> before = std::exchange(order_, {});
  for (const Place& where : before) {
    order_.push_back(where);
    const Place kept = part(where, " (frozen)", frozen);
    at(where).trainable = !all(where, frozen);
    if (!all(kept, frozen)) continue;
    at(kept).trainable = false;
    const Place quantised = part(kept, " (packed)", packed);
    at(quantised).trainable = false;
    at(quantised).packed = all(quantised, packed);
  }
}

void ParameterSet::place(int slices) {
  number_elements();
  part_frozen();
  flat_size_ = packed_size_ = 0;
  const auto lay_out = [&](bool trained, bool packed, std::int64_t& size) {
    for (const Place& where : order_) {
      Bucket& bucket = at(where);
      if (bucket.trainable != trained || bucket.packed != packed) continue;
      std::int64_t end = 0;
      bucket.decayed = 0;
      for (Parameter* p : bucket.parameters) {
        p->offset = end;
        end += round_up(p->local_count(), kAlignment);
        if (p->decay) bucket.decayed = end;
      }
      if (!where.resident) continue;
      bucket.size = round_up(end, kSliceAlignment * slices);
      bucket.offset = size;
      size += bucket.size;
    }
  };
  lay_out(true, false, flat_size_);
  trained_size_ = flat_size_;
  lay_out(false, false, flat_size_);
  lay_out(false, true, packed_size_);
  for (const Parameter* copy : copies_) {
    const Bucket& own = bucket_with(copy);
    const Bucket& original = bucket_with(copy->tied_to);
    CHOIR_CHECK(own.parameters.size() == 1 && original.parameters.size() == 1 &&
                    copy->local == copy->tied_to->local && copy->decay == copy->tied_to->decay &&
                    copy->trainable == copy->tied_to->trainable,
                "'{}' and '{}' are not laid out alike", copy->name, copy->tied_to->name);
    own.parameters.front()->position = copy->tied_to->position;
  }
}

void ParameterSet::bind(const Precision& precision, void* values, void* masters, void* gradients) {
  for (const Bucket& bucket : buckets_) {
    const auto from = [&](void* flat, DType dtype) {
      return flat && !bucket.packed ? window(flat, dtype, bucket.offset, {0}).data : nullptr;
    };
    bind_values(bucket, {from(values, precision.compute), precision.compute, {bucket.size}});
    void* const sums = bucket.trainable ? from(gradients, precision.gradient) : nullptr;
    bind_gradients(bucket, {sums, precision.gradient, {bucket.size}});
    void* const master = from(masters, precision.master);
    for (Parameter* p : bucket.parameters)
      p->master = window(master, precision.master, p->offset, p->local);
  }
}

void ParameterSet::bind_values(const Bucket& bucket, const TensorView& values) {
  for (Parameter* p : bucket.parameters)
    p->value = window(values.data, values.dtype, p->offset, p->local);
}

void ParameterSet::bind_gradients(const Bucket& bucket, const TensorView& gradients) {
  for (Parameter* p : bucket.parameters)
    p->gradient = window(gradients.data, gradients.dtype, p->offset, p->local);
}

std::int64_t ParameterSet::count() const {
  std::int64_t sum = 0;
  for (const Parameter* p : all_) sum += p->count();
  return sum;
}

std::int64_t ParameterSet::count_decayed() const {
  std::int64_t sum = 0;
  for (const Parameter* p : all_) sum += p->decay ? p->count() : 0;
  return sum;
}

std::int64_t ParameterSet::count_frozen() const {
  std::int64_t sum = 0;
  for (const Parameter* p : all_) sum += p->trainable ? 0 : p->count();
  return sum;
}

std::int64_t ParameterSet::count_packed() const {
  std::int64_t sum = 0;
  for (const Parameter* p : all_) sum += p->packed ? p->count() : 0;
  return sum;
}

void initialise(const Parameter& parameter, std::uint64_t seed, const TensorView& to,
                std::int64_t first) {
  const std::int64_t n = to.count();
  if (to.dtype == DType::f64)
    fill(parameter, seed, first, n, to.as<double>());
  else if (to.dtype == DType::bf16)
    fill(parameter, seed, first, n, to.as<bf16>());
  else
    fill(parameter, seed, first, n, to.as<float>());
}

}  // namespace choir
