#pragma once
// Interface to CUDA that does not need its headers. A build without the toolkit implements it too,
// and reports that there are no devices and why.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "choir/device/device.hpp"

namespace choir::cuda {

/// One GPU as this process sees it.
struct Card {
  int ordinal = 0;     ///< argument of make_device()
  std::string name;    ///< "NVIDIA H200"
  std::string uuid;    ///< "GPU-1b2c..."
  std::string pci;     ///< "0000:3b:00.0"
  int numa_node = -1;  ///< NUMA node of its PCI slot; -1 if unknown
  int major = 0, minor = 0;
  int multiprocessors = 0;
  double peak_bf16_flops = 0;  ///< see peak_bf16_flops(); 0: unknown architecture
  std::size_t memory = 0;      ///< total bytes
};

/// The usable CUDA devices; if there are none, the reason and a hint.
struct Availability {
  std::vector<Card> cards;
  std::string reason;  ///< empty when there are cards
  std::string hint;
  std::string driver, toolkit;  ///< "13.0": the newest CUDA that the driver supports, and the
                                ///< version of the build
};
/// Never throws. Queries the driver on every call.
Availability availability();

/// The device of card `ordinal`. Throws DeckError with the reason if it cannot be used (no driver,
/// too old a driver, an architecture without kernels).
std::unique_ptr<Device> make_device(int ordinal);
/// The card of a cuda device; nullptr for others.
const Card* card_of(const Device& device);
/// Lets kernels of graphs that are recorded from now on begin before the end of the kernel ahead of
/// them (kernels/cuda/launch.cuh), or no longer. A new device does not. Does nothing on others.
void set_dependent_launch(Device& device, bool on);
/// True if the card can begin such kernels early: sm_90 and newer.
bool has_dependent_launch(const Device& device);
/// True if the next kernel of the stream may begin before the end of the one ahead of it: where
/// set_dependent_launch() allows it, while a graph is recorded, if it comes after one other kernel
/// and nothing else.
bool may_begin_early(const Stream& stream);
/// True if kernels of GPU `from` can access the memory of GPU `to` (P2P); both are visible.
bool can_access(int from, int to);
/// Bytes of device memory that are free now; 0 for other devices.
std::size_t free_memory(const Device& device);

/// Peak FLOP per second of dense bf16 products with f32 sums. For a known name this is the vendor's
/// figure; otherwise it follows from the architecture, the multiprocessors and the highest clock,
/// which boards for data centres do not sustain; 0 for an unknown architecture.
double peak_bf16_flops(const Card& card, double highest_clock);

}  // namespace choir::cuda
