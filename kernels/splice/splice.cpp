#include "choir/ops/splice.hpp"

#include <algorithm>

#include "choir/ops/reduce.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/splice/splice.hpp"

namespace choir::ops {
namespace {

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
