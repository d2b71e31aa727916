#include "kernels/ctc/ctc.cuh"

#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

void check_limits(std::int64_t rows, std::int64_t columns) {
  CHOIR_CHECK(columns < std::int64_t{1} << 30 && rows < std::int64_t{1} << 31,
              "{} rows of {} logits", rows, columns);
}

LaunchShape warp_rows(std::int64_t rows) {
  return {static_cast<unsigned>(blocks_for(rows, kRowWarps)), kCtcThreads};
}

template <class T>
CtcCall<T> call_of(const ops::Ctc& args, const CtcPlan& plan, std::int64_t batch) {
  auto* base = args.workspace.as<std::uint8_t>();
  const auto floats = [&](std::int64_t at) { return reinterpret_cast<float*>(base + at); };
  const auto ints = [&](std::int64_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
  return {.logits = args.logits.as<T>(),
          .frame_lengths = args.frame_lengths,
          .labels = static_cast<const std::int32_t*>(args.labels.data),
          .label_lengths = args.label_lengths,
          .losses = args.losses.as<float>(),
          .stats = floats(plan.stats),
          .emissions = floats(plan.emissions),
          .alphas = floats(plan.alphas),
          .betas = floats(plan.betas),
          .chains = ints(plan.chains),
          .infinite = ints(plan.last),
          .batch = static_cast<int>(batch),
          .frames = static_cast<int>(args.logits.shape.rows() / batch),
          .columns = static_cast<int>(args.logits.shape.back()),
          .vocabulary = static_cast<int>(args.vocabulary),
          .half = static_cast<int>(plan.half),
          .scale = args.scale,
          .device_scale = args.device_scale,
          .write_gradient = args.write_gradient,
          .zero_infinity = args.zero_infinity};
}

}  // namespace

void ctc(const Stream& stream, const ops::Ctc& args) {
  const std::int64_t batch = args.losses.count(), rows = args.logits.shape.rows(),
                     labels = args.labels.count() / batch;
  check_limits(rows, args.logits.shape.back());
  if (labels > kCtcMostLabels)
    throw Error(ExitCode::deck,
                fmt::format("ctc: {} labels in an utterance, the GPU kernel takes at most {}",
                            labels, kCtcMostLabels),
                "leave out or cut longer utterances, or use device=cpu");
  with_element(args.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const CtcPlan plan(batch, rows / batch, labels, args.vocabulary, sizeof(float));
    const CtcCall<T> call = call_of<T>(args, plan, batch);
    const auto blocks = static_cast<unsigned>(batch);
    const std::size_t row_bytes = static_cast<std::size_t>(plan.half) * sizeof(float);
    if (rows > 0) launch(stream, "ctc_rows", ctc_rows_kernel<T>, warp_rows(rows), call);
    launch(stream, "ctc_lattice", ctc_lattice_kernel<T>,
           {dim3(blocks, args.write_gradient ? 2 : 1), kCtcThreads, 5 * row_bytes}, call);
    if (!args.write_gradient || rows == 0) return;
    launch(stream, "ctc_chains", ctc_chains_kernel<T>, {blocks, kCtcThreads}, call);
    launch(stream, "ctc_gradient", ctc_gradient_kernel<T>,
           {static_cast<unsigned>(rows), kCtcThreads, row_bytes}, call);
  });
}

void best_symbols(const Stream& stream, const TensorView& logits, std::int64_t vocabulary,
                  const TensorView& best) {
  const std::int64_t rows = logits.shape.rows(), columns = logits.shape.back();
  check_limits(rows, columns);
  if (rows == 0) return;
  with_element(logits.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "best_symbols", best_symbols_kernel<T>, warp_rows(rows),
           static_cast<const T*>(logits.as<T>()), rows, static_cast<int>(columns),
           static_cast<int>(vocabulary), best.as<std::int32_t>());
  });
}

void log_softmax(const Stream& stream, const TensorView& logits, std::int64_t vocabulary) {
  const std::int64_t rows = logits.shape.rows(), columns = logits.shape.back();
  check_limits(rows, columns);
  if (rows == 0) return;
  with_element(logits.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "log_softmax", log_softmax_kernel<T>, warp_rows(rows), logits.as<T>(), rows,
           static_cast<int>(columns), static_cast<int>(vocabulary));
  });
}

}  // namespace choir::cuda
