#pragma once
// All activations and temporaries of a step come from one arena: a fixed block of device memory
// with a deterministic allocator and reference-counted tensors. The same sequence of requests
// yields the same offsets on every device, so the peak found on the null device is exactly the size
// to reserve. Nothing here calls the system allocator after construction. Not thread safe: one
// arena per rank.
#include <cstdint>
#include <utility>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir {

class Arena;

/// A TensorView whose memory lives in an arena for as long as any copy of the handle does.
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

  /// Uninitialised. `tag` (a literal) names the tensor when memory runs out.
  Tensor allocate(DType dtype, const Shape& shape, const char* tag);

  /// Where the same tensors are asked for in the same order again and again, but not always of the
  /// same size (a pipeline with micro-batches of several shapes in flight), holes between them
  /// would depend on the order of sizes. Between begin_sequence() and end_sequence() request k
  /// takes requests()[k] bytes if that is more than it needs; a planning arena raises that to the
  /// largest it has seen. So offsets and peak are the same for all sizes, once a plan has seen
  /// each.
  void begin_sequence() { request_ = 0; }
  void end_sequence();
  bool in_sequence() const { return request_ != kNoSequence; }
  const std::vector<std::size_t>& requests() const { return requests_; }
  /// From the plan.
  void set_requests(std::vector<std::size_t> requests) { requests_ = std::move(requests); }

  std::size_t capacity() const { return capacity_; }
  std::size_t live() const { return live_; }
  /// Highest address ever used: what must be reserved.
  std::size_t peak() const { return peak_; }
  /// Bytes of live tensors at their largest; peak() - peak_live() was lost to fragmentation.
  std::size_t peak_live() const { return peak_live_; }
  Device& device() const { return *device_; }

 private:
  friend class Tensor;
  struct Block {
    std::size_t offset = 0, bytes = 0;
    std::int32_t previous = -1, next = -1;  // neighbours by offset
    std::int32_t references = 0;            // 0: a hole
    std::int32_t hole = -1;                 // which of holes_
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
  std::vector<std::int32_t> holes_;  // few, where the blocks of a deep model are thousands
  std::int32_t first_ = -1, last_ = -1;
  static constexpr std::size_t kNoSequence = SIZE_MAX;
  std::vector<std::size_t> requests_;
  std::size_t request_ = kNoSequence;  // the next one
  std::size_t top_ = 0, live_ = 0, peak_ = 0, peak_live_ = 0;
};

}  // namespace choir
