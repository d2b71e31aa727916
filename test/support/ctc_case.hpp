#pragma once
// Utterances with the results of the reference, on any device.
#include "kernels/ctc/ctc.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// Parts of the tolerance, in units of the roundoff u of sums: the error of an exponential or
/// logarithm (absolute, and for every unit of its argument), and the roundings of a sum over the
/// vocabulary.
struct CtcErrors {
  double function, function_per_unit, additions;
  /// 2 ulp; as CrossEntropyErrors.
  static CtcErrors cpu(std::int64_t vocabulary) {
    return {4, 1, std::min<double>(static_cast<double>(vocabulary), 4096) / 8 + 8};
  }
  /// exp 2^-22 + 2^-23 |x|; a lane of 32 sums every 32nd exponential.
  static CtcErrors cuda(std::int64_t vocabulary) {
    return {8, 2, static_cast<double>(vocabulary) / 32 + 16};
  }
};

class CtcCase {
 public:
  static constexpr double kScale = 0.25;
  HostTensor logits;  ///< frames and columns that are not counted hold NaN and 1e30
  HostTensor labels, frame_lengths, label_lengths;
  std::int64_t batch, frames, most, vocabulary;

  /// Utterance 0 has all frames and labels; 1 no labels; 2 one frame fewer than its labels need,
  /// which are all equal (so it is impossible); 3 no frames and no labels; others random, possible.
  CtcCase(DType dtype, std::int64_t utterances, std::int64_t all_frames, std::int64_t all_labels,
          std::int64_t counted, std::int64_t padding, double deviation)
      : logits(
            HostTensor::normal(dtype, {utterances * all_frames, counted + padding}, 1, deviation)),
        labels(HostTensor::filled(DType::i32, {utterances, all_labels}, -1)),
        frame_lengths(DType::i32, {utterances}),
        label_lengths(DType::i32, {utterances}),
        batch(utterances),
        frames(all_frames),
        most(all_labels),
        vocabulary(counted),
        deviation_(deviation) {
    const HostTensor random = HostTensor::integers({utterances, all_labels + 2}, 5, 1 << 20);
    const std::int64_t symbols = counted - 1;
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto draw = [&](std::int64_t i) {
        return static_cast<std::int64_t>(random[b * (all_labels + 2) + i]);
      };
      std::int64_t t = frames, u = symbols > 0 ? most : 0;
      if (b == 1) u = 0;
      if (b == 2) t = std::min(frames, std::max<std::int64_t>(2 * u - 2, 0));
      if (b == 3) t = u = 0;
      if (b > 3) t = 1 + draw(0) % frames, u = std::min({t / 2, most, u});
      frame_lengths.set(b, static_cast<double>(t)), label_lengths.set(b, static_cast<double>(u));
      for (std::int64_t i = 0; i < u; ++i)
        labels.set(b * most + i, static_cast<double>(b == 2 ? 0 : draw(2 + i) % symbols));
      for (std::int64_t r = b * frames; r < (b + 1) * frames; ++r)
        for (std::int64_t c = r < b * frames + t ? counted : 0; c < columns(); ++c)
          logits.set(r * columns() + c, c % 2 ? 1e4 : NAN);
    }
  }
  std::int64_t columns() const { return logits.shape().back(); }
  DType sums() const { return sum_dtype(logits.dtype()); }

  ops::Ctc arguments() const {
    ops::Ctc c;
    c.vocabulary = vocabulary, c.scale = kScale;
    return c;
  }
  /// Runs the op on `device`; `gradient` contains the logits first.
  void run(Device& device, HostTensor& gradient, HostTensor& losses, ops::Ctc args,
           int skew = 0) const {
    const Stream stream(device);
    Mirror mirror(device);
    args.logits = mirror.io(gradient, skew), args.labels = mirror.in(labels);
    args.losses = mirror.io(losses);
    args.frame_lengths = mirror.in(frame_lengths).as<std::int32_t>();
    args.label_lengths = mirror.in(label_lengths).as<std::int32_t>();
    if (args.device_scale != nullptr)
      args.device_scale = mirror.object(*const_cast<double*>(args.device_scale));
    args.workspace = mirror.workspace(
        ops::ctc_workspace(stream, batch, frames, most, vocabulary, logits.dtype()));
    ops::ctc(stream, args);
    mirror.fetch();
  }
  void reference(HostTensor& gradient, HostTensor& losses, bool zero_infinity = true) const {
    gradient = logits.to(DType::f64), losses = HostTensor(DType::f64, {batch});
    ops::Ctc c = arguments();
    c.logits = gradient, c.labels = labels, c.losses = losses, c.zero_infinity = zero_infinity;
    c.frame_lengths = frame_lengths.view().as<std::int32_t>();
    c.label_lengths = label_lengths.view().as<std::int32_t>();
    ref::ctc(c);
  }

  /// A log-probability is at most R = 10 deviations + ln V away from 0, and rounded with the errors
  /// of its sum. A step of a recursion rounds numbers of at most `frames` R three times and has the
  /// errors of its functions, whose arguments matter only near 0. Alpha and beta together have one
  /// step per frame; an occupation is at most 1, and has the relative error of both and of its own
  /// sum.
  void check(Device& device, const CtcErrors& e, int skew = 0) const {
    SCOPED_TRACE(fmt::format("{} B {} T {} U {} V {} of {} skew {}", name_of(logits.dtype()), batch,
                             frames, most, vocabulary, columns(), skew));
    HostTensor exact, exact_losses, gradient = logits, losses(sums(), {batch});
    reference(exact, exact_losses);
    run(device, gradient, losses, arguments(), skew);
    const double u = unit_roundoff(sums()), n = static_cast<double>(frames);
    const double range = 10 * deviation_ + std::log(static_cast<double>(vocabulary));
    const double emission =
        (3 * range + range * e.function_per_unit + 2 * e.function + e.additions) * u;
    const double steps = n * (emission + (3 * n * range + 3 * e.function + 4) * u);
    expect_close(losses, exact_losses, 2 * u, steps, "losses");
    const double occupied =
        2 * steps +
        (e.function + n * range * e.function_per_unit + 2 * static_cast<double>(most) + 8) * u;
    const double store = unit_roundoff(logits.dtype());
    expect_close(gradient, exact, 2 * store,
                 kScale * (emission + occupied) + underflow_roundoff(logits.dtype()), "gradient");
    HostTensor untouched = logits, only_losses(sums(), {batch});
    ops::Ctc forward = arguments();
    forward.write_gradient = false;
    run(device, untouched, only_losses, forward, skew);
    EXPECT_TRUE(only_losses.same_bits(losses));
    EXPECT_TRUE(untouched.same_bits(logits));
  }

  /// Utterance b alone, without padding.
  CtcCase alone(std::int64_t b) const {
    CtcCase one = *this;
    one.batch = 1, one.frames = static_cast<std::int64_t>(frame_lengths[b]);
    one.most = static_cast<std::int64_t>(label_lengths[b]);
    one.logits = HostTensor(logits.dtype(), {one.frames, vocabulary});
    one.labels = HostTensor(DType::i32, {1, one.most});
    one.frame_lengths = HostTensor::filled(DType::i32, {1}, frame_lengths[b]);
    one.label_lengths = HostTensor::filled(DType::i32, {1}, label_lengths[b]);
    for (std::int64_t t = 0; t < one.frames; ++t)
      for (std::int64_t c = 0; c < vocabulary; ++c)
        one.logits.set(t * vocabulary + c, logits[(b * frames + t) * columns() + c]);
    for (std::int64_t i = 0; i < one.most; ++i) one.labels.set(i, labels[b * most + i]);
    return one;
  }
  /// Checks that the bits are the same alone and in the batch.
  void check_padding(Device& device) const {
    HostTensor gradient = logits, losses(sums(), {batch});
    run(device, gradient, losses, arguments());
    for (std::int64_t b = 0; b < batch; ++b) {
      if (frame_lengths[b] == 0) continue;
      SCOPED_TRACE(fmt::format("{} utterance {}", name_of(logits.dtype()), b));
      const CtcCase one = alone(b);
      HostTensor own = one.logits, loss(sums(), {1});
      one.run(device, own, loss, arguments());
      EXPECT_EQ(loss[0], losses[b]);
      for (std::int64_t t = 0; t < frames; ++t)
        for (std::int64_t c = 0; c < columns(); ++c)
          ASSERT_EQ(gradient[(b * frames + t) * columns() + c],
                    t < one.frames && c < vocabulary ? own[t * vocabulary + c] : 0)
              << "frame " << t << " column " << c;
    }
  }

 private:
  double deviation_;
};

}  // namespace choir::test
