#include "choir/ops/ctc.hpp"

#include "kernels/ctc/ctc.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

struct CtcSizes {
  std::int64_t batch, frames, labels;
};

void check_vocabulary(const TensorView& logits, std::int64_t vocabulary) {
  CHOIR_CHECK(vocabulary >= 1 && vocabulary <= logits.shape.back(), "vocabulary {} in rows of {}",
              vocabulary, logits.shape.back());
}

CtcSizes check_sizes(const Stream& stream, const Ctc& args) {
  const DType dtype = args.logits.dtype;
  CHOIR_CHECK(args.losses.shape.rank() == 1 && args.losses.count() >= 1, "losses are {}",
              to_string(args.losses.shape));
  const std::int64_t batch = args.losses.count(), rows = args.logits.shape.rows();
  CHOIR_CHECK(rows % batch == 0, "{} rows of logits for {} utterances", rows, batch);
  CHOIR_CHECK(args.labels.count() % batch == 0, "labels are {} for {} utterances",
              to_string(args.labels.shape), batch);
  const CtcSizes sizes{batch, rows / batch, args.labels.count() / batch};
  check_vocabulary(args.logits, args.vocabulary);
  check_tensor(args.logits, dtype, rows * args.logits.shape.back(), "logits");
  if (sizes.labels > 0) check_tensor(args.labels, DType::i32, batch * sizes.labels, "labels");
  check_tensor(args.losses, sum_dtype_of(dtype), batch, "losses");
  CHOIR_CHECK(args.frame_lengths != nullptr && args.label_lengths != nullptr,
              "frame_lengths or label_lengths is missing");
  check_workspace(args.workspace,
                  ctc_workspace(stream, batch, sizes.frames, sizes.labels, args.vocabulary, dtype));
  return sizes;
}

/// Checks of values that only a host can read.
void check_values(const Ctc& args, const CtcSizes& sizes) {
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const std::int32_t frames = args.frame_lengths[b], count = args.label_lengths[b];
    CHOIR_CHECK(frames >= 0 && frames <= sizes.frames, "utterance {}: {} frames of {}", b, frames,
                sizes.frames);
    CHOIR_CHECK(count >= 0 && count <= sizes.labels, "utterance {}: {} labels of {}", b, count,
                sizes.labels);
    const auto* labels = static_cast<const std::int32_t*>(args.labels.data) + b * sizes.labels;
    for (std::int32_t i = 0; i < count; ++i)
      CHOIR_CHECK(labels[i] >= 0 && labels[i] < args.vocabulary - 1,
                  "utterance {}: label {} is outside of {} symbols without the blank", b, labels[i],
                  args.vocabulary - 1);
  }
}

/// Cost of a logit (exp, difference, sum) and of a state (exp or log and the operations around it).
constexpr double kLogitFlops = 20, kStateFlops = 20;

}  // namespace

std::int64_t ctc_workspace(const Stream&, std::int64_t batch, std::int64_t frames,
                           std::int64_t labels, std::int64_t vocabulary, DType dtype) {
  return CtcPlan(batch, frames, labels, vocabulary, dtype == DType::f64 ? 8 : 4).bytes;
}

void ctc(const Stream& stream, const Ctc& args) {
  const CtcSizes sizes = check_sizes(stream, args);
  const double passes = args.write_gradient ? 2 : 1;
  // A recursion has 4 functions per label and 2 per blank; the occupation adds one of each.
  const double states = static_cast<double>(sizes.batch * sizes.frames * (sizes.labels + 1));
  stream.count(passes * kLogitFlops * static_cast<double>(args.logits.count()) +
                   kStateFlops * states * (args.write_gradient ? 2 * (4 + 2) + 2 : 4 + 2),
               passes * as_bytes(args.logits) + as_bytes(args.labels) + as_bytes(args.losses));
  if (on_cuda(stream)) return cuda::ctc(stream, args);
  if (!computes(stream)) return;
  check_values(args, sizes);
  with_element(args.logits.dtype, [&](auto t) { cpu::ctc<decltype(t)>(args); });
}

void best_symbols(const Stream& stream, const TensorView& logits, std::int64_t vocabulary,
                  const TensorView& best) {
  check_tensor(logits, logits.dtype, logits.count(), "logits");
  check_vocabulary(logits, vocabulary);
  check_tensor(best, DType::i32, logits.shape.rows(), "best");
  stream.count(static_cast<double>(logits.count()), as_bytes(logits) + as_bytes(best));
  if (on_cuda(stream)) return cuda::best_symbols(stream, logits, vocabulary, best);
  if (!computes(stream)) return;
  with_element(logits.dtype,
               [&](auto t) { cpu::best_symbols<decltype(t)>(logits, vocabulary, best); });
}

void log_softmax(const Stream& stream, const TensorView& logits, std::int64_t vocabulary) {
  check_tensor(logits, logits.dtype, logits.count(), "logits");
  check_vocabulary(logits, vocabulary);
  stream.count(kLogitFlops * static_cast<double>(logits.count()), 2 * as_bytes(logits));
  if (on_cuda(stream)) return cuda::log_softmax(stream, logits, vocabulary);
  if (!computes(stream)) return;
  with_element(logits.dtype, [&](auto t) { cpu::log_softmax<decltype(t)>(logits, vocabulary); });
}

}  // namespace choir::ops
