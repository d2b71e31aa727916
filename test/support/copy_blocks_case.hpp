#pragma once
// Blocks of rows rearranged and summed, against the reference, on any device.
#include "kernels/copy/copy.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// Converts rows of `blocks` * `terms` adjacent blocks to parts of `share` blocks, each with all
/// rows, and back, as ranks exchange them.
struct CopyBlocksCase {
  DType dtype;
  std::int64_t rows, parts, share, width, copies;
  std::int64_t gap = 0;  ///< elements around the moved ones
  int skew = 0;

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} rows, {} parts of {} blocks of {}, {} copies, gap {} skew {}",
                             name_of(dtype), rows, parts, share, width, copies, gap, skew));
    const std::int64_t blocks = parts * share, row = blocks / copies * width + gap;
    const std::int64_t part_row = share * width + gap;
    const HostTensor whole = HostTensor::normal(dtype, {rows, row}, 1);
    const HostTensor cut = HostTensor::normal(dtype, {parts, rows, part_row}, 2);
    const auto place = [&](void* data, bool of_parts, bool summed) -> ops::BlockPlace {
      if (of_parts) return {data, part_row, width, share, rows * part_row};
      return {data, row, 0, summed ? 1 : copies, width};
    };
    // Forward: writes every block `copies` times, and nothing else.
    HostTensor there = cut, there_exact = cut.to(DType::f64);
    const HostTensor whole64 = whole.to(DType::f64);
    run(device, whole, there, {.blocks = blocks}, [&](void* from, void* to, ops::CopyBlocks& c) {
      c.from = place(from, false, false), c.to = place(to, true, false);
    });
    ops::CopyBlocks c{.dtype = DType::f64, .rows = rows, .blocks = blocks, .width = width};
    c.from = place(whole64.data(), false, false), c.to = place(there_exact.data(), true, false);
    ref::copy_blocks(c);
    expect_close(there, there_exact, 0, 0, "copied");
    // Backward: sums the copies.
    HostTensor back = whole, back_exact = whole.to(DType::f64);
    const HostTensor cut64 = cut.to(DType::f64);
    run(device, cut, back, {.blocks = blocks / copies, .terms = copies},
        [&](void* from, void* to, ops::CopyBlocks& b) {
          b.from = place(from, true, true), b.to = place(to, false, true);
        });
    c.blocks = blocks / copies, c.terms = copies;
    c.from = place(cut64.data(), true, true), c.to = place(back_exact.data(), false, true);
    ref::copy_blocks(c);
    // Terms below 5: each addition rounds a sum below 5 copies; then the result is rounded.
    const auto n = static_cast<double>(copies);
    const bool sums = copies > 1;
    expect_close(back, back_exact, sums ? unit_roundoff(dtype) : 0,
                 sums ? 5 * n * n * unit_roundoff(sum_dtype(dtype)) : 0, "summed");
  }

 private:
  template <class F>
  void run(Device& device, const HostTensor& from, HostTensor& to, ops::CopyBlocks args,
           const F& places) const {
    Mirror mirror(device);
    args.dtype = dtype, args.rows = rows, args.width = width;
    const TensorView source = mirror.in(from, skew), target = mirror.io(to, skew);
    places(source.data, target.data, args);
    ops::copy_blocks(Stream(device), args);
    mirror.fetch();
  }
};

}  // namespace choir::test
