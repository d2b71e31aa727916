#pragma once
// Bank conflicts of shared memory, counted where the addresses of a whole warp are known: in
// ldmatrix, and in cp.async, whose 16 bytes arrive like a store of that width. Shared memory has 32
// banks of 4 bytes, and serves eight lanes with 16 bytes each at a time (CUDA C++ Programming
// Guide, compute capability 5.x and later): of these eight, lanes that use the same bank wait for
// each other.
#include <cstdint>
#include <map>
#include <string>

namespace host_cuda {

struct BankUse {
  std::uint64_t accesses = 0;   ///< accesses of eight lanes
  std::uint64_t conflicts = 0;  ///< additional turns that they took
};
struct KernelBanks {
  BankUse matrices, copies;
};

/// Bank statistics of each kernel that ran in this process, by its name.
std::map<std::string, KernelBanks>& bank_uses();

/// One lane's copy of 16 bytes to shared memory: the n-th since its last commit, which was the
/// group-th. Lanes of a warp issue the copies of equal numbers together.
void note_copy(unsigned thread, unsigned group, unsigned n, const void* shared);
/// The rows of four matrices, 16 bytes each, one per lane.
void note_matrices(const char* kernel, const void* const rows[32]);
/// Counts the copies of a block that has ended.
void settle_copies(const char* kernel);

}  // namespace host_cuda
