#pragma once
// What of the training state of a rank is kept out of device memory, as flat arrays over its slices
// of all buckets, like those of ParameterStorage. With N parameters of this rank (its slices) and
// elements as in Precision:
//
//   offload     outside                                          stays on the device
//   optimizer   moments, and masters beside a compute copy       compute copy, or masters that are
//   it file        the same, in a file                              the same all         moments,
//   masters, and beside them a compute copy (parallel.zero = 3 only) whole
//                                                                buckets while they are in use
//
// Floor of a step, beside the update itself: every byte outside is fetched and written back once,
// so N * bytes / rate each way, of the link between host and device or of the disk; "all" also
// fetches the compute values of every bucket for each forward and backward. Held on the device:
// three windows of kChunk elements (see StateStream) instead of N.
#include <array>
#include <cstdint>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/offload_memory.hpp"
#include "choir/nn/precision.hpp"

namespace choir {

struct OffloadOptions {
  /// Elements that an update fetches, works on and writes back at a time: long enough for the full
  /// rate of a link or a disk, and for kernels (a multiple of ops::kRoundingGroup).
  static constexpr std::int64_t kChunk = std::int64_t{1} << 20;

  MemoryPlace place = MemoryPlace::device;  ///< of the optimizer state
  bool parameters = false;                  ///< in host memory, with the optimizer state
  std::string directory{};                  ///< of the file
  std::int64_t chunk = kChunk;

  bool any() const { return place != MemoryPlace::device; }
  /// The same where it does something: where device memory is host memory, keeping state in the
  /// latter changes nothing.
  OffloadOptions on(const Device& device) const {
    return place == MemoryPlace::host && device.host_visible() ? OffloadOptions{} : *this;
  }
};

class OffloadedState {
 public:
  /// `value`: what the model computes with, beside masters of another type.
  enum Field { master, first_moment, second_moment, value };
  static constexpr int kFields = 4;
  struct Contents {
    bool masters = false, values = false;  ///< beside the moments
  };

  OffloadedState() = default;
  /// Collective over `world`: `slices_size` elements of masters and values, `trained_size` of
  /// moments, all zero. StorageError on every
  /// rank when one of them cannot have its file.
  OffloadedState(const OffloadOptions& options, const Precision& precision, Contents contents,
                 std::int64_t slices_size, std::int64_t trained_size, Device& device,
                 Communicator& world);

  bool has(Field field) const { return !fields_[static_cast<std::size_t>(field)].empty(); }
  /// [slices_size], moments [trained_size], at an address of the host.
  const TensorView& of(Field field) const { return fields_[static_cast<std::size_t>(field)]; }
  /// Where element `first` of it is in the memory.
  std::size_t offset(Field field, std::int64_t first) const;
  const OffloadMemory& memory() const { return memory_; }
  MemoryPlace place() const { return memory_.place(); }
  std::int64_t chunk() const { return chunk_; }

 private:
  OffloadMemory memory_;
  std::int64_t chunk_ = 0;
  std::array<TensorView, kFields> fields_{};
};

}  // namespace choir
