#include "choir/train/step_slot.hpp"

#include <algorithm>
#include <cstring>

namespace choir {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t batch_bytes(std::int64_t cells) {
  const std::size_t bytes =
      2 * static_cast<std::size_t>(cells) * sizeof(std::int32_t) + sizeof(std::int64_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

StepMarks::StepMarks(Device& device, std::size_t most) : phases_(most, Phase::other) {
  for (std::size_t i = 0; i < most; ++i) events_.push_back(std::make_unique<Event>(device));
}

void StepMarks::enter(const Stream& stream, Phase phase) {
  CHOIR_CHECK(count_ < events_.size(), "more than {} phases in a step", events_.size());
  phases_[count_] = phase;
  events_[count_++]->record_time(stream);
}

void StepMarks::spans_until(const Event& end, std::vector<PhaseSpan>& spans) const {
  for (std::size_t i = 0; i < count_; ++i) {
    const Event& next = i + 1 < count_ ? *events_[i + 1] : end;
    spans.push_back({phases_[i], next.seconds_since(*events_[i])});
  }
}

// Two phases a micro-batch; the reductions, the update, the gathers and what remains.
StepSlot::StepSlot(Device& device, std::int64_t micro_batches, std::int64_t cells, bool staged)
    : marks(device, staged ? 2 * static_cast<std::size_t>(micro_batches) + 4 : 0),
      device_(&device),
      cells_(cells),
      stride_(batch_bytes(cells)),
      inputs_(device, sizeof(ops::StepControl)),
      results_(device, sizeof(ops::StepControl)),
      published_(device) {
  if (!staged) return;
  const std::size_t bytes = static_cast<std::size_t>(micro_batches) * stride_;
  host_batches_ = HostBuffer(device, bytes);
  batches_ = Buffer(device, bytes);
  sequences_.resize(static_cast<std::size_t>(micro_batches));
}

StepSlot::~StepSlot() {
  drop_graph();
}

void StepSlot::drop_graph() {
  if (graph) device_->destroy(graph);
  graph = nullptr;
}

std::byte* StepSlot::at(const void* base, std::int64_t j) const {
  return static_cast<std::byte*>(const_cast<void*>(base)) + static_cast<std::size_t>(j) * stride_;
}

void StepSlot::stage(const Stream& copies, std::int64_t j, const TokenBatch& batch) {
  CHOIR_CHECK(batch.inputs.count() == cells_ && batch.targets.count() == cells_,
              "a micro-batch of {} tokens where {} were planned", batch.inputs.count(), cells_);
  std::byte* host = at(host_batches_.data(), j);
  const std::size_t half = batch.inputs.bytes();
  std::memcpy(host, batch.inputs.data, half);
  std::memcpy(host + half, batch.targets.data, half);
  std::memcpy(host + 2 * half, &batch.first_sample, sizeof batch.first_sample);
  copies.copy_from_host(at(batches_.data(), j), host, 2 * half + sizeof batch.first_sample);
  sequences_[static_cast<std::size_t>(j)] = batch.sequences;
}

void StepSlot::publish(const Stream& copies, const Stream& stream) {
  published_.record(copies);
  stream.wait(published_);
}

TokenBatch StepSlot::staged(std::int64_t j) const {
  std::byte* device = at(batches_.data(), j);
  const std::size_t half = static_cast<std::size_t>(cells_) * sizeof(std::int32_t);
  return {.inputs = {device, DType::i32, {cells_}},
          .targets = {device + half, DType::i32, {cells_}},
          .first_sample = 0,
          .sequences = sequences_[static_cast<std::size_t>(j)],
          .first_sample_on_device = reinterpret_cast<const std::int64_t*>(device + 2 * half)};
}

}  // namespace choir
