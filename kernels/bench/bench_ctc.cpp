// Bench of the loss of a CTC head, against its reference.
#include <algorithm>
#include <cmath>

#include "kernels/bench/op_bench.hpp"
#include "kernels/ctc/ctc.hpp"

namespace choir::ops {
namespace {

/// Micro-batches like those of speech: three labels in ten frames.
struct CtcShape {
  std::int64_t batch, frames, labels, symbols;
  explicit CtcShape(const BenchShape& shape)
      : batch(std::max<std::int64_t>(1, shape.rows / shape.tokens)),
        frames(std::min(shape.rows, shape.tokens)),
        labels(frames * 3 / 10),
        symbols(shape.vocabulary) {}
};

/// An i32 tensor [count] filled with `value`, shared by all sets.
class Constant {
 public:
  Constant(Device& device, std::int64_t count, std::int64_t value)
      : host(static_cast<std::size_t>(count), static_cast<std::int32_t>(value)),
        buffer_(device, host.size() * sizeof(std::int32_t)) {
    device.copy_from_host(buffer_.data(), host.data(), host.size() * sizeof(std::int32_t));
  }
  const std::int32_t* data() const { return static_cast<const std::int32_t*>(buffer_.data()); }
  std::vector<std::int32_t> host;

 private:
  Buffer buffer_;
};

/// Allowed error: steps round numbers of up to kCtcRescale log-probabilities, and rounding errors
/// add up as a random walk.
double allowed_ctc_error(DType dtype, DType sums, const CtcShape& of) {
  const double step = kCtcRescale * (10 + std::log(static_cast<double>(of.symbols)));
  return allowed_error(dtype, static_cast<double>(of.symbols)) +
         allowed_error(sums, 0) * step * std::sqrt(static_cast<double>(of.frames));
}

/// Compares the first and the last utterance; utterances are independent of each other.
Agreement compare(const OpBench& bench, const BenchOperands& data, const CtcShape& of,
                  const Ctc& args, const Operand& kept, const Operand& labels) {
  Agreement agreement;
  const std::int64_t elements = of.frames * of.symbols;
  for (const std::int64_t b : {std::int64_t{0}, of.batch - 1}) {
    std::vector<double> z = kept.exact(b * elements, elements), loss(1);
    std::vector<std::int32_t> symbols;
    for (std::int64_t i = 0; i < of.labels; ++i)
      symbols.push_back(static_cast<std::int32_t>(labels.exact(b * of.labels + i)));
    const auto frames = static_cast<std::int32_t>(of.frames),
               count = static_cast<std::int32_t>(of.labels);
    Ctc exact = args;
    exact.logits = view_of(z, {of.frames, of.symbols}), exact.losses = view_of(loss, {1});
    exact.labels = {symbols.data(), DType::i32, {1, of.labels}};
    exact.frame_lengths = &frames, exact.label_lengths = &count;
    ref::ctc(exact);
    const double allowed = allowed_ctc_error(bench.dtype, bench.sums, of);
    agreement.add(data.read(args.losses, b, 1), loss,
                  allowed_ctc_error(bench.sums, bench.sums, of));
    agreement.add(data.read(args.logits, b * elements, elements), z, allowed);
  }
  return agreement;
}

}  // namespace

void bench_ctc(OpBench& bench) {
  const CtcShape of(bench.shape);
  if (bench.shape.speech.samples == 0) return;
  if (of.symbols < 2 || of.labels < 1) return;  // there is no valid label
  const std::int64_t rows = of.batch * of.frames;
  BenchOperands data = bench.operands(static_cast<double>(rows * of.symbols));
  const Operand kept = data.normal(bench.dtype, {rows, of.symbols}),
                logits = data.empty(bench.dtype, {rows, of.symbols}),
                labels = data.integers(of.batch * of.labels, of.symbols - 1),
                losses = data.empty(bench.sums, {of.batch}),
                workspace =
                    data.empty(DType::u8, {ctc_workspace(bench.stream, of.batch, of.frames,
                                                         of.labels, of.symbols, bench.dtype)});
  const Constant frames(data.device(), of.batch, of.frames),
      counts(data.device(), of.batch, of.labels);
  const auto arguments = [&](std::int64_t i) {
    return Ctc{.logits = logits[i],
               .frame_lengths = frames.data(),
               .labels = labels[i],
               .label_lengths = counts.data(),
               .losses = losses[i],
               .vocabulary = of.symbols,
               .workspace = workspace[i]};
  };
  // The op overwrites its logits, so every call gets fresh ones, outside of its time.
  const auto refresh = [&](std::int64_t i) {
    bench.stream.copy(logits[i].data, kept[i].data, kept[i].bytes());
  };
  const auto call = [&](const Stream& s, std::int64_t i) { ctc(s, arguments(i)); };
  refresh(0), call(bench.stream, 0);
  const Agreement agreement = compare(bench, data, of, arguments(0), kept, labels);
  refresh(0);
  bench.row("ctc", {of.batch, of.frames, of.labels, of.symbols}, agreement, call, refresh);
}

}  // namespace choir::ops
