// Decoding of packed blocks on the GPU. A thread writes one pack of 16 bytes; 8 or 16 neighbouring
// threads share a block and decode its scale each. Floor: the codes are read and the values written
// once, 2.5 bytes for an element of 16 bits with 4-bit codes, of which 2 are writes.

#include "kernels/packing/packing.hpp"

#include <type_traits>

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// Pointers and numbers of ops::Unpack.
struct PackedBlocks {
  const std::uint8_t* codes;
  const std::uint8_t* scale_codes;
  const float* scales;
  const float* groups;
  const float* tables;
  std::uint32_t first;
  Divisor width;
  std::int64_t stride, origin;
};

/// In double the product is exact, so a compiler that joins product and sum changes no bit.
__device__ inline float scale_of(const PackedBlocks& from, const float* map, std::int64_t block) {
  if (from.scale_codes == nullptr) return from.scales[block];
  const std::uint32_t local = from.first + static_cast<std::uint32_t>(block);
  const std::int64_t row = from.width.quotient(local), column = from.width.remainder(local);
  const std::int64_t group = (from.origin + row * from.stride + column) / kScaleGroup;
  const double product = static_cast<double>(map[from.scale_codes[block]]) * from.groups[1 + group];
  return static_cast<float>(product + from.groups[0]);
}

/// The codes of a pack.
template <int kBits>
using CodeWord = std::conditional_t<kBits == 16, std::uint16_t,
                                    std::conditional_t<kBits == 32, std::uint32_t, std::uint64_t>>;

template <class T, int kBits>
__global__ void __launch_bounds__(kElementwiseThreads)
    unpack_kernel(std::int64_t packs, PackedBlocks from, T* out) {
  wait_for_earlier();
  using Word = CodeWord<kPack<T> * kBits>;
  constexpr int kTables = static_cast<int>(ops::kPackingTables);
  CHOIR_SHARED_ARRAY(float, tables, kTables);
  if constexpr (kBits == 4) {
    for (int i = static_cast<int>(threadIdx.x); i < kTables; i += static_cast<int>(blockDim.x))
      tables[i] = from.tables[i];
    __syncthreads();
  }
  for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
    const Word codes = reinterpret_cast<const Word*>(from.codes)[i];
    const float scale = scale_of(from, tables + 16, i * kPack<T> / kPackedBlock);
    Pack<T> pack;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      if constexpr (kBits == 4)
        pack.x[k] = tables[codes >> 4 * (k ^ 1) & 15] * scale;  // the first is in the high half
      else
        pack.x[k] = static_cast<float>(static_cast<std::int8_t>(codes >> 8 * k)) * scale;
    }
    reinterpret_cast<uint4*>(out)[i] = packed(pack);
  }
}

void unpack(const Stream& stream, const ops::Unpack& args) {
  const bool four = args.bits == 4;
  CHOIR_CHECK(args.first + args.out.count() / kPackedBlock <= INT32_MAX, "{} blocks from {}",
              args.out.count() / kPackedBlock, args.first);
  const PackedBlocks from{static_cast<const std::uint8_t*>(args.codes.data),
                          four ? static_cast<const std::uint8_t*>(args.scales.data) : nullptr,
                          four ? nullptr : static_cast<const float*>(args.scales.data),
                          static_cast<const float*>(args.groups.data),
                          static_cast<const float*>(args.tables.data),
                          static_cast<std::uint32_t>(args.first),
                          Divisor(args.width),
                          args.stride,
                          args.origin};
  with_element(args.out.dtype, [&](auto t) {
    using T = decltype(t);
    const std::int64_t packs = args.out.count() / kPack<T>;
    const LaunchShape shape{elementwise_blocks(packs), kElementwiseThreads};
    T* const out = static_cast<T*>(args.out.data);
    if (four)
      launch(stream, "unpack_nf4", unpack_kernel<T, 4>, shape, packs, from, out);
    else
      launch(stream, "unpack_int8", unpack_kernel<T, 8>, shape, packs, from, out);
  });
}

}  // namespace choir::cuda
