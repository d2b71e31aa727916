#include "choir/device/arena.hpp"

#include <algorithm>
#include <utility>

#include "src/core/quantities.hpp"

namespace choir {
namespace {

// Nodes reserved at construction. A step of a 200-layer model that saves everything needs fewer; a
// deeper one allocates the rest in its first step.
constexpr std::size_t kUsualBlocks = 1 << 15;

}  // namespace

Tensor::Tensor(const Tensor& other)
    : TensorView(other), arena_(other.arena_), block_(other.block_) {
  if (arena_) arena_->retain(block_);
}

Tensor::Tensor(Tensor&& other) noexcept
    : TensorView(other), arena_(other.arena_), block_(other.block_) {
  other.arena_ = nullptr;
  other.data = nullptr;
}

Tensor& Tensor::operator=(Tensor other) noexcept {
  std::swap(static_cast<TensorView&>(*this), static_cast<TensorView&>(other));
  std::swap(arena_, other.arena_);
  std::swap(block_, other.block_);
  return *this;
}

Tensor::~Tensor() {
  if (arena_) arena_->release(block_);
}

Tensor Tensor::view(const TensorView& part) const {
  Tensor result = *this;
  static_cast<TensorView&>(result) = part;
  return result;
}

bool Tensor::sole_owner() const {
  return arena_ && arena_->at(block_).references == 1;
}

Arena::Arena(Device& device, std::size_t capacity) : device_(&device), capacity_(capacity) {
  if (device.kind() == DeviceKind::null) {
    base_ = static_cast<std::byte*>(device.allocate(0));
  } else if (capacity > 0) {
    memory_ = Buffer(device, capacity);
    base_ = static_cast<std::byte*>(memory_.data());
  }
  blocks_.reserve(kUsualBlocks);
  spare_.reserve(kUsualBlocks);
  holes_.reserve(kUsualBlocks);
}

Arena::~Arena() = default;

Tensor Arena::allocate(DType dtype, const Shape& shape, const char* tag) {
  const std::size_t wanted = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  const std::size_t bytes =
      bytes_in_sequence(std::max(kAlignment, (wanted + kAlignment - 1) / kAlignment * kAlignment));
  std::int32_t block = take_hole(bytes);
  if (block < 0) block = extend_top(bytes, tag);
  at(block).references = 1;
  live_ += bytes;
  peak_live_ = std::max(peak_live_, live_);
  Tensor tensor;
  tensor.arena_ = this;
  tensor.block_ = block;
  tensor.data = base_ + at(block).offset;
  tensor.dtype = dtype;
  tensor.shape = shape;
  return tensor;
}

std::size_t Arena::bytes_in_sequence(std::size_t bytes) {
  if (request_ == kNoSequence) return bytes;
  const std::size_t k = request_++;
  const bool plans = device_->kind() == DeviceKind::null;
  if (k == requests_.size() && plans) requests_.push_back(bytes);
  if (k >= requests_.size()) return bytes;
  if (plans) requests_[k] = std::max(requests_[k], bytes);
  return std::max(requests_[k], bytes);
}

void Arena::end_sequence() {
  const bool plans = device_->kind() == DeviceKind::null;
  CHOIR_CHECK(!plans || request_ == kNoSequence || request_ == requests_.size(),
              "{} tensors in a step of one shape, {} in a step of another shape", request_,
              requests_.size());
  request_ = kNoSequence;
}

// Takes the smallest hole that fits, always before the free space on top: the choice must not
// depend on the capacity, or the plan would not be exact.
std::int32_t Arena::take_hole(std::size_t bytes) {
  std::int32_t best = -1;
  for (const std::int32_t i : holes_)
    if (at(i).bytes >= bytes && (best < 0 || std::pair(at(i).bytes, at(i).offset) <
                                                 std::pair(at(best).bytes, at(best).offset)))
      best = i;
  if (best < 0) return best;
  forget_hole(best);
  if (at(best).bytes > bytes) {
    const std::int32_t rest = new_node();
    Block& hole = at(best);
    at(rest) = {hole.offset + bytes, hole.bytes - bytes, best, hole.next, 0};
    at(hole.next).previous = rest;  // a hole always has a neighbour above, because the top is never
                                    // a hole
    hole.next = rest;
    hole.bytes = bytes;
    note_hole(rest);
  }
  return best;
}

std::int32_t Arena::extend_top(std::size_t bytes, const char* tag) {
  if (top_ + bytes > capacity_)
    throw Error(ExitCode::other,
                fmt::format("the arena of {} has no room for '{}' ({} more)",
                            format_bytes(static_cast<double>(capacity_)), tag,
                            format_bytes(static_cast<double>(bytes))),
                "lower train.micro_batch_size");
  const std::int32_t node = new_node();
  at(node) = {top_, bytes, last_, -1, 0};
  if (last_ >= 0)
    at(last_).next = node;
  else
    first_ = node;
  last_ = node;
  top_ += bytes;
  peak_ = std::max(peak_, top_);
  return node;
}

std::int32_t Arena::new_node() {
  if (!spare_.empty()) {
    const std::int32_t node = spare_.back();
    spare_.pop_back();
    return node;
  }
  blocks_.emplace_back();
  spare_.reserve(blocks_.capacity());  // release() must not throw
  holes_.reserve(blocks_.capacity());
  return static_cast<std::int32_t>(blocks_.size() - 1);
}

void Arena::release(std::int32_t block) noexcept {
  if (--at(block).references > 0) return;
  live_ -= at(block).bytes;
  if (const std::int32_t above = at(block).next; above >= 0 && at(above).references == 0) {
    forget_hole(above);
    merge_with_next(block);
  }
  if (const std::int32_t below = at(block).previous; below >= 0 && at(below).references == 0) {
    merge_with_next(below);
    block = below;
  } else {
    note_hole(block);
  }
  if (at(block).next >= 0) return;
  forget_hole(block);
  last_ = at(block).previous;  // the block touches the top: return the space
  if (last_ >= 0)
    at(last_).next = -1;
  else
    first_ = -1;
  top_ = at(block).offset;
  spare_.push_back(block);
}

void Arena::note_hole(std::int32_t block) noexcept {
  at(block).hole = static_cast<std::int32_t>(holes_.size());
  holes_.push_back(block);
}

void Arena::forget_hole(std::int32_t block) noexcept {
  const std::int32_t place = at(block).hole;
  holes_[static_cast<std::size_t>(place)] = holes_.back();
  at(holes_.back()).hole = place;
  holes_.pop_back();
  at(block).hole = -1;
}

void Arena::merge_with_next(std::int32_t block) noexcept {
  const std::int32_t gone = at(block).next;
  at(block).bytes += at(gone).bytes;
  at(block).next = at(gone).next;
  if (at(gone).next >= 0)
    at(at(gone).next).previous = block;
  else
    last_ = block;
  spare_.push_back(gone);
}

}  // namespace choir
