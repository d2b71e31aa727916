#pragma once
// What the program may ask about CUDA without knowing its headers. A build without the toolkit
// answers too: nothing is there, and why.
#include <memory>
#include <string>
#include <vector>

#include "choir/device/device.hpp"

namespace choir::cuda {

/// One GPU as this process sees it.
struct Card {
  int ordinal = 0;     ///< what make_device() takes
  std::string name;    ///< "NVIDIA H200"
  std::string uuid;    ///< "GPU-1b2c..."
  std::string pci;     ///< "0000:3b:00.0"
  int numa_node = -1;  ///< of its PCI slot; -1: the system does not say
  int major = 0, minor = 0;
  int multiprocessors = 0;
  double peak_bf16_flops = 0;  ///< see peak_bf16_flops(); 0: unknown architecture
  std::size_t memory = 0;      ///< bytes, all of it
};

/// Whether CUDA devices can be used here; if not, why, and what to do about it.
struct Availability {
  std::vector<Card> cards;
  std::string reason;  ///< empty when there are cards
  std::string hint;
  std::string driver, toolkit;  ///< "13.0": the newest CUDA of the driver; the one built with
};
/// Never throws. Asks the driver on every call.
Availability availability();

/// Streams, memory and handles on card `ordinal`; throws DeckError with the reason when it cannot
/// be used (no driver, too old a driver, an architecture without kernels).
std::unique_ptr<Device> make_device(int ordinal);
/// The card of a cuda device; nullptr for others.
const Card* card_of(const Device& device);
/// Bytes of its memory that nobody has just now; 0 for others.
std::size_t free_memory(const Device& device);

/// Dense products of bf16 with sums in f32, FLOP per second: the maker's figure where the name is
/// known; otherwise from the architecture, the multiprocessors and the highest clock, which boards
/// for data centres do not keep up; 0 where the architecture is unknown, too.
double peak_bf16_flops(const Card& card, double highest_clock);

}  // namespace choir::cuda
