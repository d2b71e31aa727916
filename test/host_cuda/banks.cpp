#include "test/host_cuda/banks.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace host_cuda {
namespace {

// Threads of a kernel update these tallies without synchronization, which ThreadSanitizer would
// report; synchronizing them would hide races of the kernels themselves. Therefore nothing is
// counted under ThreadSanitizer.
#if defined(HOST_CUDA_TSAN)
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;
#endif

constexpr unsigned kTogether = 8, kWarp = 32, kBytes = 16, kPlaces = 8;

/// Number of lanes that access shared memory at once.
struct Access {
  std::array<std::uintptr_t, kTogether> address{};
  unsigned lanes = 0;

  void add(const void* at) { address[lanes++] = reinterpret_cast<std::uintptr_t>(at); }
  /// Extra turns after the first: addresses in different rows of the same banks.
  unsigned conflicts() const {
    std::array<unsigned, kPlaces> rows{};
    for (unsigned i = 0; i < lanes; ++i) {
      const auto seen = address.begin() + i;
      if (std::find(address.begin(), seen, *seen) == seen) ++rows[*seen / kBytes % kPlaces];
    }
    return *std::max_element(rows.begin(), rows.end()) - 1;
  }
  void count(BankUse& use) const {
    if (lanes == 0) return;
    ++use.accesses;
    use.conflicts += conflicts();
  }
};

/// Keyed by warp, group, number and eighth lane; one map per running block.
std::map<std::array<unsigned, 4>, Access>& open_copies() {
  static thread_local std::map<std::array<unsigned, 4>, Access> copies;
  return copies;
}

}  // namespace

std::map<std::string, KernelBanks>& bank_uses() {
  static auto* uses = new std::map<std::string, KernelBanks>;  // tests read it at the end
  return *uses;
}

void note_copy(unsigned thread, unsigned group, unsigned n, const void* shared) {
  if (!kCounts) return;
  open_copies()[{thread / kWarp, group, n, thread % kWarp / kTogether}].add(shared);
}

void note_matrices(const char* kernel, const void* const rows[32]) {
  if (!kCounts) return;
  KernelBanks& banks = bank_uses()[kernel];
  for (unsigned matrix = 0; matrix < kWarp / kTogether; ++matrix) {
    Access access;
    for (unsigned r = 0; r < kTogether; ++r) access.add(rows[matrix * kTogether + r]);
    access.count(banks.matrices);
  }
}

void settle_copies(const char* kernel) {
  if (!kCounts || open_copies().empty()) return;
  KernelBanks& banks = bank_uses()[kernel];
  for (const auto& [place, access] : open_copies()) access.count(banks.copies);
  open_copies().clear();
}

}  // namespace host_cuda
