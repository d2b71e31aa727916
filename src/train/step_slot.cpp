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

StepSlot::StepSlot(Device& device, const Options& options)
    : marks(device, options.marks),
      device_(&device),
      options_(options),
      cells_(options.sequences * options.share.tokens),
      stride_(batch_bytes(cells_)),
      inputs_(device, sizeof(ops::StepControl)),
      results_(device, sizeof(ops::StepControl)),
      published_(device) {
  if (!options.keeps_batches) return;
  const std::size_t bytes = static_cast<std::size_t>(options.micro_batches) * stride_;
  host_batches_ = HostBuffer(device, bytes);
  batches_ = Buffer(device, bytes);
  sequences_.resize(static_cast<std::size_t>(options.micro_batches));
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
  const std::int64_t whole = options_.sequences * options_.whole_tokens;
  CHOIR_CHECK(batch.inputs.count() == whole && batch.targets.count() == whole,
              "a micro-batch of {} tokens where {} were planned", batch.inputs.count(), whole);
  std::byte* host = at(host_batches_.data(), j);
  const std::size_t half = static_cast<std::size_t>(cells_) * sizeof(std::int32_t);
  const auto cut = [&](const TensorView& from, std::int32_t padding, std::byte* to) {
    cut_positions({from.as<std::int32_t>(), static_cast<std::size_t>(whole)}, options_.whole_tokens,
                  options_.share, padding,
                  {reinterpret_cast<std::int32_t*>(to), static_cast<std::size_t>(cells_)});
  };
  cut(batch.inputs, 0, host);
  cut(batch.targets, -1, host + half);
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
