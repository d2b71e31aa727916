#include "src/train/step/step_slot.hpp"

#include <algorithm>
#include <cstring>

namespace choir {
namespace {

/// Bytes for the index of the first sample, which precedes the fields.
constexpr std::size_t kHeader = 64;
static_assert(sizeof(std::int64_t) <= kHeader);

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

NativeGraph StepGraphs::find(const Key& key) {
  const auto found = std::find_if(recorded_.begin(), recorded_.end(),
                                  [&](const Recorded& one) { return one.key == key; });
  if (found == recorded_.end()) return nullptr;
  std::rotate(recorded_.begin(), found, found + 1);
  return recorded_.front().graph;
}

void StepGraphs::add(Key key, NativeGraph graph) {
  if (recorded_.size() == most_) drop_last();
  recorded_.insert(recorded_.begin(), {std::move(key), graph});
}

StepGraphs::~StepGraphs() {
  while (!recorded_.empty()) drop_last();
}

void StepGraphs::drop_last() {
  device_->destroy(recorded_.back().graph);
  recorded_.pop_back();
}

StepSlot::StepSlot(Device& device, const Options& options)
    : marks(device, options.marks),
      graphs(device, options.graphs),
      losses(device, options.terms, options.places, options.sums),
      options_(options),
      stride_(kHeader + options.batch_bytes),
      inputs_(device, sizeof(ops::StepControl)),
      results_(device, sizeof(ops::StepControl)),
      published_(device) {
  if (options.batch_bytes == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(options.micro_batches) * stride_;
  host_batches_ = HostBuffer(device, bytes);
  batches_ = Buffer(device, bytes);
  staged_.resize(static_cast<std::size_t>(options.micro_batches));
}

std::byte* StepSlot::at(const void* base, std::int64_t j) const {
  return static_cast<std::byte*>(const_cast<void*>(base)) + static_cast<std::size_t>(j) * stride_;
}

void StepSlot::stage(const Stream& copies, std::int64_t j, const ModelBatch& batch) {
  std::byte* const host = at(host_batches_.data(), j);
  std::byte* const device = at(batches_.data(), j);
  if (j == 0) shapes_.clear();
  shapes_.insert(shapes_.end(), {batch.samples, batch.tokens});
  for (const BatchField& field : batch.fields())
    for (int dim = 0; dim < field.view.shape.rank(); ++dim)
      shapes_.push_back(field.view.shape[dim]);
  ModelBatch& there = staged_[static_cast<std::size_t>(j)];
  there = batch;
  there.first_sample = 0;
  there.first_sample_on_device = reinterpret_cast<const std::int64_t*>(device);
  std::memcpy(host, &batch.first_sample, sizeof batch.first_sample);
  std::size_t used = kHeader, copied = 0;
  const auto copy_up_to = [&](std::size_t end) {
    if (end > copied) copies.copy_from_host(device + copied, host + copied, end - copied);
  };
  for (BatchField& field : there.fields()) {
    const TensorView from = field.view;
    if (from.empty() && field.resident == nullptr) continue;
    const bool shared = options_.ranks.share(field);
    const BatchField whole = field;
    TensorView& to = field.view;
    if (shared) to.shape = share_shape(batch, whole, options_.ranks);
    CHOIR_CHECK(used + to.bytes() <= stride_, "a micro-batch of {} bytes where {} were planned",
                bytes_of_fields(batch), options_.batch_bytes);
    if (whole.resident != nullptr) {
      copy_up_to(used);
      copied = used + padded_field_bytes(to);
      gather_resident(copies, batch, whole, options_.ranks, device + used);
      field.resident = nullptr;
    } else if (shared)
      copy_share(batch, whole, options_.ranks, host + used);
    else
      std::memcpy(host + used, from.data, from.bytes());
    to.data = device + used;
    used += padded_field_bytes(to);
  }
  CHOIR_CHECK(!options_.fixed || used == stride_,
              "a micro-batch of {} bytes where all have {}: recorded work needs a fixed size",
              bytes_of_fields(batch), options_.batch_bytes);
  copy_up_to(used);
}

void StepSlot::publish(const Stream& copies, const Stream& stream) {
  published_.record(copies);
  stream.wait(published_);
}

}  // namespace choir
