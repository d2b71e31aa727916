#include "src/optim/optimizer.hpp"

#include <algorithm>

#include "choir/device/device.hpp"
#include "choir/nn/parameter.hpp"
#include "src/optim/averaged_weights.hpp"

namespace choir {

Optimizer::Optimizer(ParameterStorage& storage, Device& device, const Options& options,
                     std::uint64_t seed, bool exact)
    : storage_(&storage), options_(options) {
  const UpdateRule& rule = *options_.rule;
  CHOIR_CHECK(rule.moments().size() <= kMostMoments, "{} states", rule.moments().size());
  CHOIR_CHECK(rule.needs_wide_masters().empty() || storage.precision().master != DType::bf16,
              "{} needs {}", rule.name(), rule.needs_wide_masters());
  for (const Bucket& b : storage.parameters().buckets())
    CHOIR_CHECK(
        rule.needs_masters_on_device().empty() || !b.trainable || !storage.masters_outside(b),
        "{} needs {}", rule.name(), rule.needs_masters_on_device());
  if (const OffloadedState* outside = storage.offloaded())
    make_outside(device, *outside);
  else
    make_resident(device);
  updater_ = rule.make({storage, device, options_, seed, exact});
  const auto rounds = updater_->rounds();
  rounds_.assign(rounds.begin(), rounds.end());
  if (!rounds_.empty()) return;
  for (std::size_t b = 0; b < storage.parameters().buckets().size(); ++b)
    if (bucket(b).trainable) rounds_.push_back({b, 1, false});
}

void Optimizer::make_outside(Device& device, const OffloadedState& outside) {
  const std::array<TensorView, kMostMoments> all{outside.of(OffloadedState::first_moment),
                                                 outside.of(OffloadedState::second_moment)};
  std::copy_n(all.begin(), moment_names().size(), moments_.begin());
  std::vector<Range> flat;
  for (const Bucket& b : storage_->parameters().buckets()) {
    chunks_of_.push_back({std::ssize(chunks_), 0});
    if (!b.trainable) continue;
    const std::int64_t begin = b.offset / storage_->sharding().slices();
    const std::int64_t size = storage_->sharding().slice(b).count;
    for (std::int64_t at = 0; at < size; at += outside.chunk()) {
      chunks_.push_back({at, std::min(outside.chunk(), size - at)});
      flat.push_back({begin + at, chunks_.back().count});
      ++chunks_of_.back().count;
    }
  }
  state_ = StateStream::make(outside, device, std::move(flat));
}

// Memory is that of the slice with most elements, so that all ranks need the same.
void Optimizer::make_resident(Device& device) {
  const DType type = storage_->precision().moment;
  const std::int64_t slices = storage_->sharding().slices();
  std::array<std::int64_t, kMostMoments> sizes{};
  for (std::size_t which = 0; which < moment_names().size(); ++which)
    for (const Bucket& b : storage_->parameters().buckets()) {
      if (!b.trainable) {
        kept_[which].push_back({});
        continue;
      }
      const std::int64_t size = b.size / slices;
      std::int64_t most = 0;
      for (std::int64_t slice = 0; slice < slices; ++slice)
        most = std::max(most, kept_of(which, b, slice).in_slice.count);
      const std::int64_t mine = storage_->sharding().slice(b).first / size;
      kept_[which].push_back({kept_of(which, b, mine).in_slice, sizes[which]});
      sizes[which] += most;
    }
  std::int64_t all = 0;
  for (const std::int64_t size : sizes) all += size;
  memory_ = Buffer(device, static_cast<std::size_t>(all) * size_of(type));
  const TensorView flat{memory_.data(), type, {all}};
  std::int64_t at = 0;
  for (std::size_t which = 0; which < moment_names().size(); ++which) {
    moments_[which] = flat.slice(at, sizes[which]);
    at += sizes[which];
  }
  if (all > 0) device.zero(memory_.data(), memory_.bytes());
}

// From the first to the last parameter that keeps the moment; the whole slice if all do.
Optimizer::Kept Optimizer::kept_of(std::size_t which, const Bucket& b, std::int64_t slice) const {
  const std::int64_t size = b.size / storage_->sharding().slices();
  std::int64_t first = b.size, end = 0, keep = 0;
  for (const Parameter* p : b.parameters) {
    if (!keeps(which, *p)) continue;
    ++keep;
    first = std::min(first, p->offset);
    end = std::max(end, p->offset + p->local_count());
  }
  const bool all = keep == std::ssize(b.parameters);
  const Range hull = all ? Range{0, b.size} : Range{first, std::max<std::int64_t>(0, end - first)};
  const Range kept = overlap(hull, {slice * size, size});
  return {{kept.count > 0 ? kept.first - slice * size : 0, kept.count}, 0};
}

TensorView Optimizer::moment(std::size_t which, const Parameter& p) const {
  CHOIR_CHECK(keeps(which, p), "{} has no {}", p.name, moment_names()[which]);
  const Bucket& b = storage_->bucket_of(p);
  if (state_) return storage_->owned_part(storage_->slice_of(moments_[which], b), p);
  const Range mine = storage_->owned(p);
  if (mine.count == 0) return {nullptr, moments_[which].dtype, {0}};
  const Kept& kept = kept_[which][static_cast<std::size_t>(p.bucket)];
  const std::int64_t in_slice = p.offset + mine.first - storage_->sharding().slice(b).first;
  return moments_[which].slice(kept.at + in_slice - kept.in_slice.first, mine.count);
}

void Optimizer::add_to(MemoryPlan& plan) const {
  if (state_)
    state_->add_to(plan);
  else
    plan.add("optimizer moments", memory_.bytes());
  updater_->add_to(plan);
}

// Gathers that `updated` starts may use the communicator of the exchanges, so they follow the last
// one.
void Optimizer::step(const Stream& stream, const ops::StepControl* control,
                     const std::function<void(const Bucket&)>& updated) {
  const ProfileRange range(stream, options_.rule->name().data());
  const bool exchanges = !updater_->rounds().empty();
  const std::function<void(const Bucket&)> later;
  if (state_ && !exchanges) state_->begin(stream);
  for (std::size_t r = 0; r < rounds_.size(); ++r) {
    if (rounds_[r].exchanges) {
      pass(stream, control, rounds_[r], Phase::collect, {});
      updater_->exchange(stream, control, r);
    }
    pass(stream, control, rounds_[r], Phase::update, exchanges ? later : updated);
  }
  if (state_ && !exchanges) state_->end();
  if (!exchanges || !updated) return;
  for (const Bucket& b : storage_->parameters().buckets())
    if (b.trainable) updated(b);
}

// State outside is streamed once for all buckets, or, if rounds visit it several times, pass by
// pass: a pass then sees what the one before it has written.
void Optimizer::pass(const Stream& stream, const ops::StepControl* control,
                     const Updater::Round& round, Phase phase,
                     const std::function<void(const Bucket&)>& updated) {
  const bool apart = state_ && !updater_->rounds().empty();
  const std::size_t end = round.first + round.count;
  if (apart) {
    const Range first = chunks_of_[round.first], last = chunks_of_[end - 1];
    state_->begin(stream, {first.first, last.end() - first.first});
  }
  for (std::size_t b = round.first; b < end; ++b) {
    if (!bucket(b).trainable) continue;
    if (state_) {
      const Range& chunks = chunks_of_[b];
      for (std::int64_t chunk = chunks.first; chunk < chunks.end(); ++chunk) {
        const StateStream::Window window = state_->acquire();
        const UpdatePart part =
            part_outside(bucket(b), chunks_[static_cast<std::size_t>(chunk)], window);
        work(stream, control, phase, part);
        if (averages_ != nullptr && phase == Phase::update)
          averages_->update(stream, control, window[OffloadedState::average], part.master);
        state_->release();
      }
    } else {
      work(stream, control, phase, resident_part(bucket(b)));
    }
    if (updated) updated(bucket(b));
  }
  if (apart) state_->end();
}

void Optimizer::work(const Stream& stream, const ops::StepControl* control, Phase phase,
                     const UpdatePart& part) {
  phase == Phase::collect ? updater_->collect(stream, control, part)
                          : updater_->update(stream, control, part);
}

UpdatePart Optimizer::resident_part(const Bucket& b) const {
  UpdatePart part{.bucket = &b,
                  .in_bucket = storage_->sharding().slice(b),
                  .master = storage_->masters(b),
                  .gradient = storage_->gradients(b),
                  .copy = storage_->copies(b)};
  for (std::size_t which = 0; which < moment_names().size(); ++which) {
    const Kept& kept = kept_[which][static_cast<std::size_t>(&b - &bucket(0))];
    part.states[which] = {moments_[which].slice(kept.at, kept.in_slice.count), kept.in_slice.first};
  }
  return part;
}

// Fields that are not outside are updated in their resident memory.
UpdatePart Optimizer::part_outside(const Bucket& b, const Range& chunk,
                                   const StateStream::Window& window) const {
  const OffloadedState& outside = *storage_->offloaded();
  const auto pick = [&](OffloadedState::Field field, const TensorView& resident) {
    if (outside.has(field)) return window[static_cast<std::size_t>(field)];
    return resident.empty() ? resident : resident.slice(chunk.first, chunk.count);
  };
  return {.bucket = &b,
          .in_bucket = {storage_->sharding().slice(b).first + chunk.first, chunk.count},
          .master = pick(OffloadedState::master, storage_->masters(b)),
          .gradient = pick(OffloadedState::gradient, storage_->gradients(b)),
          .copy = pick(OffloadedState::value, storage_->copies(b)),
          .states = {UpdatePart::State{pick(OffloadedState::first_moment, {})},
                     UpdatePart::State{pick(OffloadedState::second_moment, {})}}};
}

}  // namespace choir
