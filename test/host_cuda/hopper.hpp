#pragma once
// Hardware units of sm_90a beside its threads, for one block: barriers in shared memory, the copy
// engine and the products of warp groups. All of them are as late as the manual allows: a box
// arrives when no thread can continue without it (or by the seed); a product is complete when it is
// waited for, and until then its registers are NaN and its operands must not change. Behavior that
// the manual leaves undefined is a defect with a name. The functions defined here access memory in
// the threads of the kernel, where the sanitizers see it; the rest is bookkeeping.
#include <array>
#include <cstdint>
#include <vector>

#include "test/host_cuda/block.hpp"
#include "test/host_cuda/include/cuda.h"

namespace host_cuda {

/// Parks the running thread until holds() is true; the scheduler calls it between the turns of
/// others.
void wait_until(const std::function<bool()>& holds, const char* operation, Where where);
/// Bytes of dynamic shared memory that the block has.
std::size_t dynamic_bytes();

}  // namespace host_cuda

namespace host_cuda::hopper {

/// While one exists, blocks have the shared memory of sm_90 and may use the functions below.
struct Allowed {
  Allowed();
  ~Allowed();
};
/// Bytes of shared memory that a block may have on sm_90 (PTX and CUDA C++ manuals: 227 KB).
constexpr std::size_t kMostSharedBytes = 227 * 1024;

// --- called by the scheduler --------------------------------------------------------------------
std::size_t most_shared_bytes();
std::size_t shared_alignment();
void begin_block(unsigned threads);
/// Names the operations for which a thread that ends has not waited.
void end_thread(const char* kernel);
void end_block(const char* kernel);
/// Called if no thread can continue: gives a waiting thread the box that arrives next. False if
/// there is none.
bool deliver(std::uint64_t drawn);

// --- barriers -----------------------------------------------------------------------------------
void init(void* barrier, unsigned arrivals);
/// Announces `bytes` and arrives.
void arrive(void* barrier, unsigned bytes);
void fence_proxy();
void named_barrier(unsigned id, unsigned threads, Where where);

// --- shared addresses: the window of the block begins at 1024, as the driver's does ------------
std::uint32_t shared_address(const void* shared);
/// The byte at an address; a defect outside of the block's shared memory.
const unsigned char* at_shared(std::uint32_t address);
/// The swizzle of 128-byte rows: bits 4-6 of an address ^= bits 7-9.
constexpr std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 3 & 0x70u);
}

// --- the copy engine ----------------------------------------------------------------------------
/// Contents of a CUtensorMap here.
struct TensorMap {
  const unsigned char* data;
  std::uint64_t dims[5], strides[5];  ///< elements; bytes, the first one element
  std::uint32_t box[5], rank, bytes;  ///< elements; bytes per element
  bool swizzled;
};
struct Box {
  unsigned char* to;
  std::uint32_t address;  ///< address of `to` in the window
  TensorMap map;
  std::array<int, 4> origin;
  void* barrier;
};
TensorMap decode(const CUtensorMap& map);
/// Names the fault of a box.
void check(const Box& box);
/// Queues a box.
void issue(const Box& box);
/// Waits until the phase ends: returns true; or returns false: the caller must write `box` and then
/// call landed().
bool phase_ended(void* barrier, unsigned parity, Where where, Box& box);
void landed(const Box& box);

inline std::size_t bytes_of(const TensorMap& map) {
  std::size_t bytes = map.bytes;
  for (unsigned i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

/// Calls f(byte of the box, address in the tensor or nullptr outside of it), 16 bytes at a time.
template <class F>
void for_chunks(const Box& box, const F& f) {
  const TensorMap& m = box.map;
  const std::uint32_t per_row = m.box[0] * m.bytes / 16;
  std::uint32_t at = 0;
  for (std::uint32_t l = 0; l < m.box[3]; ++l)
    for (std::uint32_t k = 0; k < m.box[2]; ++k)
      for (std::uint32_t j = 0; j < m.box[1]; ++j)
        for (std::uint32_t c = 0; c < per_row; ++c, at += 16) {
          const std::int64_t place[4] = {
              box.origin[0] + std::int64_t{c} * 16 / m.bytes, box.origin[1] + std::int64_t{j},
              box.origin[2] + std::int64_t{k}, box.origin[3] + std::int64_t{l}};
          const unsigned char* from = m.data;
          for (unsigned i = 0; i < 4 && from; ++i) {
            const bool inside = place[i] >= 0 && place[i] < static_cast<std::int64_t>(m.dims[i]);
            from = inside ? from + place[i] * static_cast<std::int64_t>(m.strides[i]) : nullptr;
          }
          f(at, from);
        }
}

inline void land(const Box& box) {
  for_chunks(box, [&](std::uint32_t at, const unsigned char* from) {
    const std::uint32_t address = box.address + at;
    const std::uint32_t to = box.map.swizzled ? swizzled(address) : address;
    auto* chunk = reinterpret_cast<std::uint64_t*>(box.to + (to - box.address));
    const auto* words = reinterpret_cast<const std::uint64_t*>(from);
    for (int i = 0; i < 2; ++i) chunk[i] = words ? words[i] : 0;
  });
}

inline void load_box(void* shared, const CUtensorMap& map, std::array<int, 4> origin,
                     void* barrier) {
  const Box box{static_cast<unsigned char*>(shared), shared_address(shared), decode(map), origin,
                barrier};
  check(box);
  auto* to = reinterpret_cast<volatile std::uint64_t*>(box.to);
  for (std::size_t i = 0; i < bytes_of(box.map) / 8; ++i) to[i] = ~std::uint64_t{0};
  issue(box);
}

inline void wait(void* barrier, unsigned parity, Where where) {
  Box box;
  while (!phase_ended(barrier, parity, where, box)) land(box), landed(box);
}

// --- products of a warp group ------------------------------------------------------------------
/// wgmma.mma_async.m64nNk16 with sums in f32.
struct Product {
  int n;
  bool bf16;       ///< or f16
  bool rows_of_b;  ///< B is stored as rows of k (imm-trans-b)
  bool a_shared;
  std::uint64_t a, b;  ///< descriptors
  bool accumulate;
};
/// Bits of A [64][16] (if in shared memory) and B [16][n].
struct Operands {
  std::vector<std::uint16_t> a, b;
  bool operator==(const Operands&) const = default;
};

/// The descriptor of 9.7.15.5.1.2.2 from its fields, in bytes; `swizzle` 0 none, 1 128, 2 64, 3 32.
constexpr std::uint64_t encode(std::uint32_t address, std::uint32_t leading, std::uint32_t stride,
                               unsigned swizzle, unsigned base_offset = 0) {
  const auto field = [](std::uint32_t x) { return std::uint64_t{(x & 0x3ffffu) >> 4}; };
  return field(address) | field(leading) << 16 | field(stride) << 32 |
         std::uint64_t{base_offset & 7u} << 49 | std::uint64_t{swizzle} << 62;
}

/// Offset of element (i, k) of a matrix, with i along M or N; canonical layouts of
/// 9.7.15.5.1.2.1.3. `k_major`: k runs along the rows in memory. Elements have two bytes.
constexpr std::uint32_t element_address(std::uint64_t descriptor, bool k_major, unsigned i,
                                        unsigned k) {
  const auto field = [&](unsigned bit) {
    return static_cast<std::uint32_t>(descriptor >> bit & 0x3fffu) << 4;
  };
  const std::uint32_t start = field(0), leading = field(16), stride = field(32);
  const unsigned mode = static_cast<unsigned>(descriptor >> 62);
  // Chunks of 16 bytes in one row of the swizzle's atom: 1, 2, 4 or 8.
  const unsigned chunks = mode == 0 ? 1 : 16u >> mode, along = k_major ? k : i,
                 across = k_major ? i : k;
  const unsigned chunk = along / 8, inside = along % 8 * 2;
  std::uint32_t address = start + across % 8 * chunks * 16 + inside;
  if (mode == 0)
    // Atoms of eight rows of one chunk; the layouts differ in the field that leads to the next
    // atom.
    address +=
        k_major ? chunk * leading + across / 8 * stride : chunk * stride + across / 8 * leading;
  else if (k_major)
    address += chunk * 16 + across / 8 * stride;
  else
    address += chunk % chunks * 16 + chunk / chunks * leading + across / 8 * stride;
  // Swizzle<log2 chunks, 4, 3> of the address itself, whose pattern begins at its period.
  return address ^ (address >> 3 & (chunks - 1) << 4);
}

inline Operands gather(const Product& p) {
  const auto element = [](std::uint64_t d, bool k_major, unsigned i, unsigned k) {
    return *reinterpret_cast<const std::uint16_t*>(at_shared(element_address(d, k_major, i, k)));
  };
  const auto n = static_cast<unsigned>(p.n);
  Operands all;
  all.a.resize(p.a_shared ? 64 * 16 : 0), all.b.resize(16 * n);
  for (unsigned m = 0; p.a_shared && m < 64; ++m)
    for (unsigned k = 0; k < 16; ++k) all.a[m * 16 + k] = element(p.a, true, m, k);
  for (unsigned k = 0; k < 16; ++k)
    for (unsigned i = 0; i < n; ++i) all.b[k * n + i] = element(p.b, !p.rows_of_b, i, k);
  return all;
}

void fence_products();
void commit_products();
/// Issues one more product of this thread; returns true if this thread is the last of its group to
/// issue it and must read the operands for the first time.
bool issued(const Product& product, const std::uint32_t* a, float* sums);
void remember(Operands operands);
/// Waits until all groups except the newest `pending` are complete. Returns true if the caller must
/// read the operands of `product` again and pass them to compute().
bool next_product(unsigned pending, Where where, Product& product);
void compute(const Operands& operands);

inline void issue(const Product& product, const std::uint32_t* a, float* sums) {
  if (issued(product, a, sums)) remember(gather(product));
}

inline void wait_for_products(unsigned pending, Where where) {
  Product product;
  while (next_product(pending, where, product)) compute(gather(product));
}

}  // namespace host_cuda::hopper
