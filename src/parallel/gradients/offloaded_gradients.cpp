#include "src/parallel/gradients/offloaded_gradients.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {

HostWindows::HostWindows(Device& device, std::size_t bytes)
    : bytes_of_window_((bytes + 2 * kAlignment - 1) / kAlignment * kAlignment),
      memory_(device, kWindows * bytes_of_window_),
      copies_(device) {
  for (Window& window : windows_) {
    window.free = std::make_unique<Event>(device);
    window.filled = std::make_unique<Event>(device);
  }
}

std::byte* HostWindows::base(std::size_t window) const {
  return static_cast<std::byte*>(memory_.data()) + window * bytes_of_window_;
}

void HostWindows::start(const Stream& stream, const void* from, std::size_t bytes) {
  CHOIR_CHECK(started_ < taken_ + kWindows, "{} reads are started", started_ - taken_);
  const std::size_t w = started_++ % kWindows;
  Window& window = windows_[w];
  const std::size_t shift = reinterpret_cast<std::uintptr_t>(from) % kAlignment;
  CHOIR_CHECK(shift + bytes <= bytes_of_window_, "a read of {} bytes", bytes);
  window.at = base(w) + shift;
  window.free->record(stream);
  copies_.stream().wait(*window.free);
  copies_.stream().copy_from_host(window.at, from, bytes);
  window.filled->record(copies_.stream());
}

void* HostWindows::take(const Stream& stream) {
  CHOIR_CHECK(taken_ < started_, "no read is started");
  const Window& window = windows_[taken_++ % kWindows];
  stream.wait(*window.filled);
  return window.at;
}

namespace {

std::size_t chunk_bytes(const ParameterStorage& storage) {
  return static_cast<std::size_t>(storage.offload_chunk()) * size_of(storage.precision().gradient);
}

}  // namespace

OffloadedSums::OffloadedSums(const ParameterStorage& storage, Device& device, std::size_t places)
    : storage_(&storage),
      windows_(device, chunk_bytes(storage)),
      sums_(device),
      stores_(device),
      ready_(device),
      added_(device),
      pending_(places, false),
      reduced_(places) {
  for (std::size_t i = 0; i < places; ++i) stored_.push_back(std::make_unique<Event>(device));
}

TensorView OffloadedSums::outside(const Bucket& bucket, std::size_t sum) const {
  return sum == kSum ? storage_->gradients(bucket) : storage_->gradient_level(sum - 1, bucket);
}

void OffloadedSums::before_writing(const Stream& stream, std::size_t place) const {
  if (pending_[place]) stream.wait(*stored_[place]);
}

void OffloadedSums::add(const Stream& stream, const Bucket& bucket, std::size_t first,
                        std::size_t count, const TensorView& fresh) {
  ready_.record(stream);
  sums_.stream().wait(ready_);
  const std::int64_t size = fresh.count(), chunk = storage_->offload_chunk();
  const auto sums = static_cast<std::int64_t>(count);
  const auto part = [&](const TensorView& whole, std::int64_t i) {
    const std::int64_t at = i / sums * chunk;
    return whole.slice(at, std::min(chunk, size - at));
  };
  const auto source = [&](std::int64_t i) {
    return part(outside(bucket, first + static_cast<std::size_t>(i % sums)), i);
  };
  windows_.each(
      sums_.stream(), (size + chunk - 1) / chunk * sums,
      [&](std::int64_t i) {
        const TensorView from = source(i);
        windows_.start(sums_.stream(), from.data, from.bytes());
      },
      [&](std::int64_t i, void* memory) {
        const TensorView to = part(fresh, i);
        ops::add(sums_.stream(), {memory, to.dtype, to.shape}, to, to);
      });
  added_.record(sums_.stream());
}

void OffloadedSums::store(const Bucket& bucket, std::size_t sum, const TensorView& fresh,
                          std::size_t place) {
  stores_.stream().wait(added_);
  stores_.stream().copy_to_host(outside(bucket, sum).data, fresh.data, fresh.bytes());
  stored_[place]->record(stores_.stream());
  pending_[place] = true;
  last_ = place;
}

void OffloadedSums::finish(const Stream& stream) {
  if (!pending_.empty() && pending_[last_]) stream.wait(*stored_[last_]);
  std::fill(pending_.begin(), pending_.end(), false);
}

}  // namespace choir
