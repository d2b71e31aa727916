// Copies of rows and blocks: checks, dispatch, CPU twins and fp64 reference.

#include "kernels/copy/copy.hpp"

#include <algorithm>
#include <cstring>

#include "choir/ops/copy_rows.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/sums/sums.hpp"

namespace choir::ops {

void copy_rows(const Stream& stream, DType dtype, std::int64_t rows, std::int64_t width,
               const RowBlock& from, const RowBlock& to, const std::int32_t* further) {
  const std::size_t unit = size_of(dtype);
  const std::size_t bytes = static_cast<std::size_t>(width) * unit;
  stream.count(0, 2.0 * static_cast<double>(bytes) * static_cast<double>(rows));
  if (on_cuda(stream))
    return cuda::copy_rows(stream, static_cast<std::int64_t>(unit), rows, width, from, to, further);
  if (!computes(stream)) return;
  CHOIR_CHECK(!further, "a row offset in device memory is for the CUDA device only");
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(target + static_cast<std::size_t>(r * to.stride) * unit,
                source + static_cast<std::size_t>(r * from.stride) * unit, bytes);
}

void copy_blocks(const Stream& stream, const CopyBlocks& args) {
  CHOIR_CHECK(args.rows >= 0 && args.blocks >= 0 && args.width >= 0 && args.terms >= 1,
              "{} rows of {} blocks of {} elements, {} terms", args.rows, args.blocks, args.width,
              args.terms);
  CHOIR_CHECK(args.from.group >= 1 && args.to.group >= 1, "groups of {} and {} blocks",
              args.from.group, args.to.group);
  const auto unit = static_cast<std::int64_t>(size_of(args.dtype));
  const double n = static_cast<double>(args.rows * args.blocks * args.width);
  const auto terms = static_cast<double>(args.terms);
  stream.count(n * (terms - 1), n * (terms + 1) * static_cast<double>(unit));
  if (on_cuda(stream)) return cuda::copy_blocks(stream, args);
  if (!computes(stream)) return;
  if (args.terms == 1) return cpu::copy_blocks(args, unit);
  with_element(args.dtype, [&](auto t) { cpu::sum_blocks<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

std::int64_t offset(const ops::BlockPlace& place, std::int64_t row, std::int64_t block) {
  return row * place.row_stride + block / place.group * place.group_stride +
         block % place.group * place.stride;
}

}  // namespace

void copy_blocks(const ops::CopyBlocks& args, std::int64_t unit) {
  const auto* from = static_cast<const std::byte*>(args.from.data);
  auto* to = static_cast<std::byte*>(args.to.data);
  const auto bytes = static_cast<std::size_t>(args.width * unit);
  parallel_ranges(args.rows, args.blocks * args.width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      for (std::int64_t block = 0; block < args.blocks; ++block)
        std::memcpy(to + offset(args.to, row, block) * unit,
                    from + offset(args.from, row, block) * unit, bytes);
  });
}

template <class T>
void sum_blocks(const ops::CopyBlocks& args) {
  const auto* from = static_cast<const T*>(args.from.data);
  auto* to = static_cast<T*>(args.to.data);
  const std::int64_t row_elements = args.blocks * args.terms * args.width;
  parallel_ranges(args.rows, row_elements, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      for (std::int64_t block = 0; block < args.blocks; ++block)
        for_vectors<T>(0, args.width, [&](std::int64_t e, auto access) {
          Vec<T> sum{};
          for (std::int64_t j = 0; j < args.terms; ++j)
            sum += access.load(from + offset(args.from, row, block * args.terms + j) + e);
          access.store(to + offset(args.to, row, block) + e, sum);
        });
  });
}

template void sum_blocks<double>(const ops::CopyBlocks&);
template void sum_blocks<float>(const ops::CopyBlocks&);
template void sum_blocks<bf16>(const ops::CopyBlocks&);
template void sum_blocks<f16>(const ops::CopyBlocks&);

}  // namespace choir::cpu

namespace choir::ref {

void copy_blocks(const ops::CopyBlocks& args) {
  const auto at = [](const ops::BlockPlace& place, std::int64_t row, std::int64_t block,
                     std::int64_t element) -> double& {
    return static_cast<double*>(
        place.data)[row * place.row_stride + block / place.group * place.group_stride +
                    block % place.group * place.stride + element];
  };
  for (std::int64_t row = 0; row < args.rows; ++row)
    for (std::int64_t block = 0; block < args.blocks; ++block)
      for (std::int64_t e = 0; e < args.width; ++e) {
        double sum = 0;
        for (std::int64_t j = 0; j < args.terms; ++j)
          sum += at(args.from, row, block * args.terms + j, e);
        at(args.to, row, block, e) = sum;
      }
}

}  // namespace choir::ref

namespace choir::ops {
namespace {

// Splices of audio into prompts: checks, dispatch, CPU twin and fp64 reference.

void check_index(const TensorView& index, std::int64_t all_audio) {
  const auto* at = index.as<std::int32_t>();
  const std::int32_t lowest = index.count() == 0 ? 0 : *std::min_element(at, at + index.count());
  CHOIR_CHECK(-1 - std::int64_t{lowest} < all_audio, "index names row {} of {} rows of audio",
              -1 - std::int64_t{lowest}, all_audio);
}

void check_places(const TensorView& index, const TensorView& rows, const TensorView& audio,
                  std::int64_t first_audio, std::int64_t all_audio) {
  const std::int64_t width = rows.shape.back();
  check_tensor(index, DType::i32, rows.shape.rows(), "index");
  check_tensor(rows, audio.dtype, rows.count(), "rows");
  check_tensor(audio, audio.dtype, audio.count(), "audio");
  CHOIR_CHECK(audio.shape.back() == width && first_audio >= 0 &&
                  (all_audio == 0 || all_audio >= first_audio),
              "audio {} from row {} of {} into rows {}", to_string(audio.shape), first_audio,
              all_audio, to_string(rows.shape));
}

}  // namespace

void splice_forward(const Stream& stream, const SpliceForward& args) {
  check_places(args.index, args.out, args.audio, args.first_audio, args.all_audio);
  stream.count(static_cast<double>(args.audio.count()),
               3.0 * as_bytes(args.audio) + as_bytes(args.index));
  if (on_cuda(stream)) return cuda::splice_forward(stream, args);
  if (!computes(stream)) return;
  check_index(args.index, args.all_audio > 0 ? args.all_audio : args.audio.shape.rows());
  with_element(args.out.dtype, [&](auto t) { cpu::splice_forward<decltype(t)>(args); });
}

void splice_backward(const Stream& stream, const SpliceBackward& args) {
  check_places(args.index, args.d_out, args.d_audio, args.first_audio, args.all_audio);
  stream.count(0, 2.0 * as_bytes(args.d_audio) + as_bytes(args.index));
  zero(stream, args.d_audio);
  if (on_cuda(stream)) return cuda::splice_backward(stream, args);
  if (!computes(stream)) return;
  check_index(args.index, args.all_audio > 0 ? args.all_audio : args.d_audio.shape.rows());
  with_element(args.d_out.dtype, [&](auto t) { cpu::splice_backward<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {

template <class T>
void splice_forward(const ops::SpliceForward& args) {
  const std::int64_t width = args.out.shape.back(), audio_rows = args.audio.shape.rows();
  const auto* index = static_cast<const std::int32_t*>(args.index.data);
  const auto* audio = static_cast<const T*>(args.audio.data);
  auto* out = static_cast<T*>(args.out.data);
  parallel_ranges(args.index.count(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t a = -1 - std::int64_t{index[r]} - args.first_audio;
      if (index[r] >= 0 || a < 0 || a >= audio_rows) continue;
      const T* x = audio + a * width;
      T* y = out + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        access.store(y + c, access.load(y + c) + access.load(x + c));
      });
    }
  });
}

template <class T>
void splice_backward(const ops::SpliceBackward& args) {
  const std::int64_t width = args.d_out.shape.back(), audio_rows = args.d_audio.shape.rows();
  const auto* index = static_cast<const std::int32_t*>(args.index.data);
  const auto* d_out = static_cast<const T*>(args.d_out.data);
  auto* d_audio = static_cast<T*>(args.d_audio.data);
  parallel_ranges(args.index.count(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t a = -1 - std::int64_t{index[r]} - args.first_audio;
      if (index[r] >= 0 || a < 0 || a >= audio_rows) continue;
      std::memcpy(static_cast<void*>(d_audio + a * width), d_out + r * width,
                  static_cast<std::size_t>(width) * sizeof(T));
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                  \
  template void splice_forward<T>(const ops::SpliceForward&); \
  template void splice_backward<T>(const ops::SpliceBackward&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {

void splice_forward(const ops::SpliceForward& args) {
  const std::int64_t width = args.out.shape.back();
  for (std::int64_t r = 0; r < args.index.count(); ++r)
    for (std::int64_t a = 0; a < args.audio.shape.rows(); ++a)
      if (args.index.as<std::int32_t>()[r] == -1 - (args.first_audio + a))
        for (std::int64_t c = 0; c < width; ++c)
          args.out.as<double>()[r * width + c] += args.audio.as<double>()[a * width + c];
}

void splice_backward(const ops::SpliceBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  for (std::int64_t a = 0; a < args.d_audio.shape.rows(); ++a)
    for (std::int64_t c = 0; c < width; ++c) {
      double& sum = args.d_audio.as<double>()[a * width + c];
      sum = 0;
      for (std::int64_t r = 0; r < args.index.count(); ++r)
        if (args.index.as<std::int32_t>()[r] == -1 - (args.first_audio + a))
          sum += args.d_out.as<double>()[r * width + c];
    }
}

}  // namespace choir::ref
