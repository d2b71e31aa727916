#include "src/store/snapshot.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "choir/core/error.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace choir {
namespace {

constexpr std::size_t kPieceAlignment = 64;

std::size_t padded(std::size_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

std::size_t bytes_of_piece(const StoredTensor& tensor, const StoredPiece& piece) {
  return static_cast<std::size_t>(piece.count) * size_of(tensor.dtype);
}

/// Copies with stores that bypass the cache: the copy is not read soon, and fully overwritten lines
/// need not be fetched. `to` is aligned.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t done = 0;
#ifdef __SSE2__
  const auto load = [&](std::size_t at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
  };
  const auto store = [&](std::size_t at, __m128i value) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), value);
  };
  for (; done + kPieceAlignment <= bytes; done += kPieceAlignment) {
    const __m128i a = load(done), b = load(done + 16), c = load(done + 32), d = load(done + 48);
    store(done, a), store(done + 16, b), store(done + 32, c), store(done + 48, d);
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

Snapshot::Snapshot(Device& device, std::size_t bytes) : device_(&device), memory_(device, bytes) {
  if (device.host_visible() || device.kind() == DeviceKind::null) return;
  copies_.emplace(device);
  settled_.emplace(device);
  copied_.emplace(device);
}

std::size_t Snapshot::bytes_of(const std::vector<StoredTensor>& tensors) {
  std::size_t bytes = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.consume) continue;  // is never saved
    for (const StoredPiece& piece : tensor.pieces) bytes += padded(bytes_of_piece(tensor, piece));
  }
  return bytes;
}

void Snapshot::take(const std::vector<StoredTensor>& tensors) {
  const std::size_t needs = bytes_of(tensors);
  CHOIR_CHECK(needs <= bytes(), "a snapshot of {} bytes into {}", needs, bytes());
  tensors_ = tensors;
  runs_.clear();
  std::vector<Run> now;
  queued_ = false;
  auto* to = static_cast<std::byte*>(memory_.data());
  for (StoredTensor& tensor : tensors_) {
    const bool later = tensor.device != nullptr && tensor.device->host_visible();
    const bool beside = tensor.device != nullptr && !later;
    CHOIR_CHECK(!beside || copies_, "{} is on a device of another kind", tensor.name);
    for (StoredPiece& piece : tensor.pieces) {
      const std::size_t bytes = bytes_of_piece(tensor, piece);
      const auto* from = static_cast<const std::byte*>(piece.data);
      if (beside)
        queue(to, from, bytes);
      else
        for (std::size_t at = 0; at < bytes; at += kRun)
          (later ? runs_ : now).push_back({to + at, from + at, std::min(kRun, bytes - at)});
      piece.data = to;
      to += padded(bytes);
    }
    tensor.device = nullptr;
  }
  if (queued_) copied_->record(copies_->stream());
  const std::int64_t n = std::ssize(now);
#pragma omp parallel for schedule(dynamic, 4)
  for (std::int64_t i = 0; i < n; ++i) copy(now[static_cast<std::size_t>(i)]);
}

void Snapshot::copy(const Run& run) {
  copy_past_cache(run.to, run.from, run.bytes);
}

void Snapshot::queue(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (!queued_) {
    settled_->record(Stream(*device_));
    copies_->stream().wait(*settled_);
    queued_ = true;
  }
  copies_->stream().copy_to_host(to, from, bytes);
}

void Snapshot::copy_run(std::int64_t i) const {
  copy(runs_[static_cast<std::size_t>(i)]);
}

void Snapshot::wait() {
  if (!queued_) return;
  device_->enter_thread();
  copied_->synchronize();
}

void SharedLoop::begin(std::int64_t n, std::function<void(std::int64_t)> body) {
  body_ = std::move(body);
  count_ = n;
  next_ = 0;
  done_ = 0;
}

void SharedLoop::help() {
  for (std::int64_t i; (i = next_.fetch_add(1)) < count_;) {
    body_(i);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) done_.notify_all();
  }
}

void SharedLoop::help_as_team() {
  if (ended()) return;
#pragma omp parallel
  help();
}

void SharedLoop::wait() const {
  for (std::int64_t seen; (seen = done_.load(std::memory_order_acquire)) != count_;)
    done_.wait(seen, std::memory_order_acquire);
}

}  // namespace choir
