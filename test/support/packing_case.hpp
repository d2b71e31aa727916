#pragma once
// Packed blocks of a matrix against the reference, on any device.
#include "kernels/packing/packing.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

inline std::vector<float> matrix_to_pack(std::int64_t elements) {
  std::vector<float> matrix(static_cast<std::size_t>(elements));
  const HostTensor normal = HostTensor::normal(DType::f32, {elements}, 11, 0.02);
  for (std::size_t i = 0; i < matrix.size(); ++i)
    matrix[i] =
        static_cast<float>(normal[static_cast<std::int64_t>(i)]) * (i / 64 % 7 == 3 ? 5.0f : 1.0f);
  std::fill_n(matrix.begin() + 64, 64, 0.0f);
  return matrix;
}

template <class T>
HostTensor host_tensor(DType dtype, const std::vector<T>& from) {
  const auto bytes = from.size() * sizeof(T);
  HostTensor tensor(dtype, {static_cast<std::int64_t>(bytes / size_of(dtype))});
  std::memcpy(tensor.data(), from.data(), bytes);
  return tensor;
}

inline HostTensor packing_tables() {
  std::vector<float> tables(kNormalFloats.begin(), kNormalFloats.end());
  for (const float x : scale_map()) tables.push_back(x);
  return host_tensor(DType::f32, tables);
}

/// The columns of blocks [first_column, first_column + width) of a matrix of `rows` rows of
/// `row_blocks` blocks.
struct PackingCase {
  int bits;
  DType dtype;
  std::int64_t rows, row_blocks, first_column, width;
  std::int64_t skipped = 0;  ///< blocks of the part that belong to another rank

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} bits to {}, {} rows of {} of {} blocks", bits, name_of(dtype),
                             rows, width, row_blocks));
    const std::vector<float> matrix = matrix_to_pack(rows * row_blocks * kPackedBlock);
    const auto all = static_cast<std::int64_t>(matrix.size());
    const BlockScales scales = block_scales(bits, matrix.data(), all);
    const std::int64_t blocks = rows * width - skipped, n = blocks * kPackedBlock;
    std::vector<std::byte> codes(static_cast<std::size_t>(code_bytes(bits, n))),
        bytes(static_cast<std::size_t>(scale_bytes(bits, n)));
    const std::int64_t unit = scale_bytes(bits, kPackedBlock);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t local = skipped + b,
                         block = local / width * row_blocks + first_column + local % width;
      pack_blocks(bits, matrix.data() + block * kPackedBlock, scales.largest.data() + block, 1,
                  codes.data() + code_bytes(bits, b * kPackedBlock));
      std::memcpy(bytes.data() + b * unit, scales.bytes.data() + block * unit,
                  static_cast<std::size_t>(unit));
    }
    const HostTensor code = host_tensor(DType::u8, codes),
                     scale = host_tensor(bits == 4 ? DType::u8 : DType::f32, bytes),
                     groups = bits == 4 ? host_tensor(DType::f32, scales.groups) : HostTensor(),
                     tables = bits == 4 ? packing_tables() : HostTensor();
    HostTensor out(dtype, {n}), exact(DType::f64, {n});
    const auto args = [&](const auto& in, const TensorView& to) {
      return ops::Unpack{.bits = bits,
                         .codes = in(code),
                         .scales = in(scale),
                         .groups = bits == 4 ? in(groups) : TensorView{},
                         .tables = bits == 4 ? in(tables) : TensorView{},
                         .first = skipped,
                         .width = width,
                         .stride = row_blocks,
                         .origin = first_column,
                         .out = to};
    };
    ref::unpack(args([](const HostTensor& x) { return x.view(); }, exact));
    Mirror mirror(device);
    ops::unpack(Stream(device),
                args([&](const HostTensor& x) { return mirror.in(x); }, mirror.io(out)));
    mirror.fetch();
    // The scale has two roundings to f32, which are absolute because its terms can cancel, the
    // product one, and the result one to its type.
    const double last = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
    expect_close(out, exact, last + 3 * 0x1p-24, dtype == DType::f16 ? 4e-8 : 2e-8, "values");
    EXPECT_TRUE(out.guard_intact());
    if (dtype != DType::f32 || skipped > 0) return;
    // An NF4 value is off by less than half the widest gap of the table, and by the error of its
    // scale, half the widest gap of the map; an int8 value by half a step.
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t local = i / kPackedBlock,
                         block = local / width * row_blocks + first_column + local % width;
      const double largest = scales.largest[static_cast<std::size_t>(block)];
      const double from = matrix[static_cast<std::size_t>(block * kPackedBlock + i % kPackedBlock)];
      const double deviation =
          bits == 4 ? scales.groups[static_cast<std::size_t>(1 + block / kScaleGroup)] : 0;
      const double bound =
          bits == 4 ? 0.152 * largest + 0.00704 * deviation : 0.5001 / 127 * largest;
      ASSERT_LE(std::abs(out[i] - from), bound) << i;
    }
  }
};

}  // namespace choir::test
