#pragma once
// The arena of a step: a fixed block of device memory that holds all activations and temporaries,
// with a deterministic allocator and reference-counted tensors. The same sequence of requests
// yields the same offsets on every device, so the peak found on the null device is exactly the size
// to reserve. After construction the system allocator is not called. Not thread safe: one arena per
// rank.
#include <cstdint>
#include <utility>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir {

class Arena;

/// A TensorView whose memory lives in an arena as long as any copy of the handle exists.
class Tensor : public TensorView {
 public:
  Tensor() = default;
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor other) noexcept;
  ~Tensor();

  /// Another view of the same block (kept alive by the result).
  Tensor view(const TensorView& part) const;
  Tensor reshaped(const Shape& to) const { return view(TensorView::reshaped(to)); }
  /// True when no other handle shares the block, so that it may be overwritten in place.
  bool sole_owner() const;
  void reset() { *this = Tensor(); }

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  std::int32_t block_ = -1;
};

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// `capacity` bytes on `device`. A planning arena (null device) takes kUnbounded.
  static constexpr std::size_t kUnbounded = std::size_t{1} << 58;
  Arena(Device& device, std::size_t capacity);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Allocates uninitialised memory. `tag` (a literal) names the tensor if memory runs out.
  Tensor allocate(DType dtype, const Shape& shape, const char* tag);

  /// Between begin_sequence() and end_sequence() request k takes at least requests()[k] bytes; a
  /// planning arena raises requests()[k] to the largest size that it has seen. So offsets and peak
  /// are the same for all sizes once a plan has seen each of them. This is for repeated sequences
  /// of the same tensors in the same order but of different sizes (a pipeline with micro-batches of
  /// several shapes in flight): without it, the holes between the tensors would depend on the order
  /// of the sizes.
  void begin_sequence() { request_ = 0; }
  void end_sequence();
  bool in_sequence() const { return request_ != kNoSequence; }
  const std::vector<std::size_t>& requests() const { return requests_; }
  /// Sets the sizes found by the plan.
  void set_requests(std::vector<std::size_t> requests) { requests_ = std::move(requests); }

  std::size_t capacity() const { return capacity_; }
  std::size_t live() const { return live_; }
  /// Highest address ever used: the size to reserve.
  std::size_t peak() const { return peak_; }
  /// Largest total size of live tensors; peak() - peak_live() is lost to fragmentation.
  std::size_t peak_live() const { return peak_live_; }
  Device& device() const { return *device_; }

 private:
  friend class Tensor;
  struct Block {
    std::size_t offset = 0, bytes = 0;
    std::int32_t previous = -1, next = -1;  // neighbours by offset
    std::int32_t references = 0;            // 0: a hole
    std::int32_t hole = -1;                 // index in holes_, or -1
  };
  void retain(std::int32_t block) { ++blocks_[static_cast<std::size_t>(block)].references; }
  void release(std::int32_t block) noexcept;
  std::size_t bytes_in_sequence(std::size_t bytes);
  std::int32_t take_hole(std::size_t bytes);
  std::int32_t extend_top(std::size_t bytes, const char* tag);
  std::int32_t new_node();
  void merge_with_next(std::int32_t block) noexcept;
  void note_hole(std::int32_t block) noexcept;
  void forget_hole(std::int32_t block) noexcept;
  Block& at(std::int32_t i) { return blocks_[static_cast<std::size_t>(i)]; }

  Device* device_;
  std::size_t capacity_;
  Buffer memory_;
  std::byte* base_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> spare_;  // unused nodes of blocks_
  std::vector<std::int32_t> holes_;  // few holes, where a deep model has thousands of blocks
  std::int32_t first_ = -1, last_ = -1;
  static constexpr std::size_t kNoSequence = SIZE_MAX;
  std::vector<std::size_t> requests_;
  std::size_t request_ = kNoSequence;  // index of the next request
  std::size_t top_ = 0, live_ = 0, peak_ = 0, peak_live_ = 0;
};

}  // namespace choir
