// Peak performance of GPUs, the denominator of utilisation.
#include <array>
#include <string_view>

#include "src/device/cuda.hpp"

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
