// Peak performance of GPUs, the denominator of utilisation.

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/device/device.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/cuda.hpp"
#include "src/device/null_device.hpp"

namespace choir::cuda {
namespace {

struct KnownPeak {
  std::string_view name;  ///< part of the driver's name of the card
  double teraflops;       ///< dense: half of the figure that is advertised with sparsity
};

// Vendors' data sheets. The first match counts, so variants precede the cards of which they are
// variants.
constexpr std::array kPeaks = std::to_array<KnownPeak>({
    {"A100", 312},       {"A800", 312},  {"A30", 165},    {"A40", 149.7}, {"A10G", 70},
    {"A10", 125},        {"L40S", 362},  {"L40", 181},    {"L4", 121},    {"H100 PCIe", 756},
    {"H100 NVL", 835.5}, {"H100", 989},  {"H800", 989},   {"H20", 148},   {"H200 NVL", 835.5},
    {"H200", 989},       {"GH200", 989}, {"GB200", 2500}, {"B200", 2250}, {"B100", 1750},
});

/// True if `name` contains `part` as whole words.
bool names(std::string_view name, std::string_view part) {
  for (std::size_t at = name.find(part); at != std::string_view::npos;
       at = name.find(part, at + 1)) {
    const auto ends_word = [&](std::size_t i) {
      return i >= name.size() || name[i] == ' ' || name[i] == '-';
    };
    if ((at == 0 || ends_word(at - 1)) && ends_word(at + part.size())) return true;
  }
  return false;
}

/// FLOP of a multiprocessor per cycle, from the architectures' white papers. GeForce cards do half
/// as many with sums in f32.
double flops_per_cycle(const Card& card) {
  const double share = card.name.find("GeForce") != std::string::npos ? 0.5 : 1;
  if (card.major == 8 && card.minor == 0) return 2048;  // A100
  if (card.major == 8) return share * 1024;             // GA10x, AD10x
  if (card.major == 9) return 4096;                     // H100, H200
  if (card.major == 10) return 8192;                    // B100, B200
  if (card.major == 12) return share * 1024;            // GB20x
  return 0;
}

}  // namespace

double peak_bf16_flops(const Card& card, double highest_clock) {
  for (const KnownPeak& known : kPeaks)
    if (names(card.name, known.name)) return 1e12 * known.teraflops;
  return flops_per_cycle(card) * highest_clock * card.multiprocessors;
}

}  // namespace choir::cuda

namespace choir {

std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
    case DeviceKind::null:
      return "null";
  }
  return "?";
}

std::unique_ptr<Device> make_device(DeviceKind kind, int ordinal) {
  switch (kind) {
    case DeviceKind::cpu:
      return std::make_unique<CpuDevice>();
    case DeviceKind::null:
      return std::make_unique<NullDevice>();
    case DeviceKind::cuda:
      return cuda::make_device(ordinal);
  }
  CHOIR_CHECK(false, "device kind {}", static_cast<int>(kind));
}

void Device::queue_copy(void* to, const void* from, std::size_t bytes, CopyKind kind,
                        NativeStream) {
  switch (kind) {
    case CopyKind::inside:
      return copy(to, from, bytes);
    case CopyKind::from_host:
      return copy_from_host(to, from, bytes);
    case CopyKind::to_host:
      return copy_to_host(to, from, bytes);
  }
}

void* Device::allocate_host(std::size_t bytes) {
  // Large blocks use pages of 2 MiB if the system provides them: data that streams through them
  // causes fewer page faults and TLB misses.
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const bool huge = bytes >= kHugePage;
  const std::size_t alignment = huge ? kHugePage : 64;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr)
    throw Error(ExitCode::other, fmt::format("out of memory: {} requested",
                                             format_bytes(static_cast<double>(bytes))));
  // Only whole huge pages: the last one would take more memory than requested.
  if (huge) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void Device::release_host(void* address) noexcept {
  std::free(address);
}

void Device::begin_capture(NativeStream) {
  CHOIR_CHECK(false, "the {} device records no graphs", name_of(kind()));
}

NativeGraph Device::end_capture(NativeStream) {
  CHOIR_CHECK(false, "the {} device records no graphs", name_of(kind()));
}

void Device::launch(NativeGraph, NativeStream) {
  CHOIR_CHECK(false, "the {} device records no graphs", name_of(kind()));
}

void Stream::wait(const Event& event) const {
  device_->wait(native_, event.native());
}

SideStream::SideStream(Device& device, bool urgent)
    : stream_(device, device.create_stream(urgent)) {}

SideStream::~SideStream() {
  stream_.device().destroy_stream(stream_.native());
}

Event::Event(Device& device) : device_(&device), native_(device.create_event()) {}

Event::~Event() {
  device_->destroy_event(native_);
}

void Event::record(const Stream& stream) {
  if (native_)
    device_->record(native_, stream.native());
  else
    time_ = now_seconds();
}

void Event::record_time(const Stream& stream) {
  if (native_)
    device_->record_time(native_, stream.native());
  else
    time_ = now_seconds();
}

double Event::seconds_since(const Event& earlier) const {
  return native_ ? device_->seconds_between(earlier.native_, native_) : time_ - earlier.time_;
}

Buffer::Buffer(Device& device, std::size_t bytes)
    : device_(&device), data_(bytes ? device.allocate(bytes) : nullptr), bytes_(bytes) {}

Buffer::~Buffer() {
  if (data_) device_->release(data_, bytes_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostBuffer::HostBuffer(Device& device, std::size_t bytes)
    : device_(&device), data_(bytes ? device.allocate_host(bytes) : nullptr), bytes_(bytes) {
  if (data_) std::memset(data_, 0, bytes);
}

HostBuffer::~HostBuffer() {
  if (data_) device_->release_host(data_);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace choir
