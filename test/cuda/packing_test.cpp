// Packed blocks on the cuda device: the reference, and the bits of the CPU.
#include "kernels/packing/packing.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/packing_case.hpp"

namespace choir::test {
namespace {

class CudaPacking : public CudaTest {};

TEST_F(CudaPacking, MatchesTheReference) {
  for (const int bits : {4, 8})
    for (const DType dtype : kGpuTypes) {
      PackingCase{bits, dtype, 3, 5, 0, 5}.check(device());
      PackingCase{bits, dtype, 130, 6, 2, 3}.check(device());
      PackingCase{bits, dtype, 60, 9, 6, 3, 50}.check(device());
    }
}

TEST_F(CudaPacking, TheBitsOfTheCpu) {
  constexpr std::int64_t kElements = 300 * kPackedBlock;
  const std::vector<float> matrix = matrix_to_pack(kElements);
  for (const int bits : {4, 8}) {
    const BlockScales scales = block_scales(bits, matrix.data(), kElements);
    std::vector<std::byte> codes(static_cast<std::size_t>(code_bytes(bits, kElements)));
    pack_blocks(bits, matrix.data(), scales.largest.data(), 300, codes.data());
    const HostTensor code = host_tensor(DType::u8, codes),
                     scale = host_tensor(bits == 4 ? DType::u8 : DType::f32, scales.bytes),
                     groups = bits == 4 ? host_tensor(DType::f32, scales.groups) : HostTensor(),
                     tables = bits == 4 ? packing_tables() : HostTensor();
    for (const DType dtype : kGpuTypes) {
      const auto unpacked = [&](Device& on) {
        HostTensor out(dtype, {kElements});
        Mirror mirror(on);
        const auto in = [&](const HostTensor& x) {
          return x.count() > 0 ? mirror.in(x) : TensorView{};
        };
        ops::unpack(Stream(on), {.bits = bits,
                                 .codes = in(code),
                                 .scales = in(scale),
                                 .groups = in(groups),
                                 .tables = in(tables),
                                 .width = 300,
                                 .stride = 300,
                                 .out = mirror.io(out)});
        mirror.fetch();
        return out;
      };
      CpuDevice cpu;
      EXPECT_TRUE(unpacked(device()).same_bits(unpacked(cpu))) << bits << " " << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace choir::test
