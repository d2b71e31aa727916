#pragma once
// Rows of logits with the results of the reference, for the op over a whole vocabulary and over a
// divided one, on any device.
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// Parts of the tolerance, in units of the roundoff u of sums: the error of one exponential
/// (absolute, and for every unit of its argument), and the number of roundings of a sum.
struct CrossEntropyErrors {
  double exp, exp_per_unit, additions;

  /// exp 2 ulp; per-lane sums of at most 4096 / 8 terms (two accumulators of at least four lanes).
  static CrossEntropyErrors cpu(std::int64_t vocabulary) {
    return {4, 1, std::min<double>(static_cast<double>(vocabulary), 4096) / 8 + 8};
  }
  /// exp 2^-22 + 2^-23 |x| (cross_entropy.cuh); 7 additions in a pack; packs of a thread: 2048 / 32
  /// / 4 of a warp's row, V / 512 / 4 of the longest; 10 steps of the tree.
  static CrossEntropyErrors cuda(std::int64_t vocabulary) {
    return {4, 2, 17 + std::max(64.0, static_cast<double>(vocabulary) / 256)};
  }
};

class CrossEntropyCase {
 public:
  static constexpr double kScale = 0.25;
  HostTensor logits, targets;  ///< padding columns hold NaN and 1e30: they must not be read
  HostTensor weights;          ///< weights of the rows; some are 0
  std::int64_t vocabulary;
  double spread, smoothing, z;
  bool weighted;
  ops::LogitMap map;

  CrossEntropyCase(DType dtype, std::int64_t rows, std::int64_t counted, std::int64_t padding,
                   double deviation, double label_smoothing = 0, bool with_weights = false,
                   double z_loss = 0, ops::LogitMap of_logits = {})
      : logits(HostTensor::normal(dtype, {rows, counted + padding}, 1, deviation)),
        targets(HostTensor::integers({rows}, 2, counted)),
        weights(DType::f32, {rows}),
        vocabulary(counted),
        spread(deviation),
        smoothing(label_smoothing),
        z(z_loss),
        weighted(with_weights),
        map(of_logits),
        exact_(DType::f64, {rows, counted + padding}),
        exact_losses_(DType::f64, {rows}),
        exact_z_losses_(DType::f64, {rows}) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = counted; c < columns(); ++c)
        logits.set(r * columns() + c, c % 2 ? 1e30 : NAN);
    if (rows > 2) targets.set(1, -1);
    targets.set(0, static_cast<double>(counted - 1));
    exact_ = logits.to(DType::f64);
    ops::CrossEntropy c;
    for (std::int64_t r = 0; r < rows; ++r) weights.set(r, 0.5 * static_cast<double>((r + 1) % 4));
    c.logits = exact_, c.targets = targets, c.losses = exact_losses_;
    c.z_losses = exact_z_losses_;
    fill(c);
    if (weighted) c.weights = weights;
    ref::cross_entropy(c);
  }
  std::int64_t rows() const { return logits.shape()[0]; }
  std::int64_t columns() const { return logits.shape()[1]; }
  DType sums() const { return sum_dtype(logits.dtype()); }
  template <class Args>
  void fill(Args& args) const {
    args.vocabulary = vocabulary, args.scale = kScale, args.label_smoothing = smoothing;
    args.z_loss = z, args.map = map;
  }

  /// Checks gradient and losses against the reference. z - max lies within 10 deviations and is
  /// rounded once; weights are at most 1.5, with one more rounding; the sum of exponentials, and
  /// thus a probability, has the relative errors named above, the probability two exponentials.
  /// Label smoothing adds the mean logit, a sum of numbers within 5 deviations, and subtracts
  /// smooth from every probability. With a z-loss, lse = max + log of the sum lies within L = 5
  /// deviations + log V, with the error of the sum and a rounding of each part, and multiplies the
  /// probability by f = 1 + 2 z lse; cases keep f above a quarter, so that its relative error is at
  /// most 8 z that of lse. The values of a map are at most the larger of its scale times those
  /// numbers; each has five roundings of numbers up to its soft cap or its argument, and its slope
  /// eight of numbers up to 1, beside which the share of the cap is rounded.
  void expect(const HostTensor& gradient, const HostTensor& losses, const HostTensor& z_losses,
              const CrossEntropyErrors& e) const {
    const double u = unit_roundoff(sums()), range = 10 * spread * std::max(1.0, map.scale);
    const double most = weighted ? 1.5 : 1;
    const double of_map = map.none() ? 0 : 10 * (map.softcap + range);
    const double of_sum =
        most *
        (range + range * e.exp_per_unit + 2 * e.exp + e.additions + (weighted ? 6 : 4) + of_map) *
        u;
    expect_close(losses, exact_losses_, 4 * u,
                 of_sum + most * smoothing * range * (e.additions + 4) * u, "losses");
    const double lse = 5 * spread + std::log(static_cast<double>(vocabulary));
    const double of_lse = of_sum + (4 + 2 * lse) * u;
    expect_close(z_losses, exact_z_losses_, 6 * u, most * 2 * lse * of_lse, "z losses");
    const double slope = map.none() ? 0 : 16 * map.scale * u;
    const double relative =
        (z == 0 ? of_sum : (1 + 2 * z * lse) * (of_sum + 8 * z * of_lse + 4 * u)) *
            std::max(1.0, map.scale) +
        slope;
    const double store = unit_roundoff(logits.dtype());
    const double tiny = std::max(0x1p-126, underflow_roundoff(logits.dtype()));
    HostTensor actual = gradient, wanted = exact_;
    for (std::int64_t r = 0; r < rows(); ++r) {  // p - 1 cancels: an error relative to p <= 1
      if (targets[r] < 0) continue;
      const std::int64_t at = r * columns() + static_cast<std::int64_t>(targets[r]);
      EXPECT_NEAR(actual[at], wanted[at], kScale * relative + store * std::fabs(wanted[at]) + tiny);
      actual.set(at, 0), wanted.set(at, 0);
    }
    const double smooth = kScale * smoothing / static_cast<double>(vocabulary);
    // The slope of a soft cap cancels where logits are near it.
    const double cancelled = map.softcap > 0 ? kScale * most * relative : 0;
    expect_close(actual, wanted, store + relative, tiny + smooth * relative + cancelled,
                 "gradient");
  }

  /// Runs the op on `device`.
  void check(Device& device, const CrossEntropyErrors& errors, int skew = 0) const {
    SCOPED_TRACE(fmt::format("{} [{}, {} of {}] spread {} smoothing {} skew {}",
                             name_of(logits.dtype()), rows(), vocabulary, columns(), spread,
                             smoothing, skew));
    HostTensor gradient = logits, losses(sums(), {rows()}), only_losses = losses;
    HostTensor z_losses = losses, only_z_losses = losses;
    Mirror mirror(device);
    ops::CrossEntropy c;
    c.logits = mirror.io(gradient, skew), c.targets = mirror.in(targets);
    c.losses = mirror.io(only_losses), c.z_losses = mirror.io(only_z_losses), fill(c);
    if (weighted) c.weights = mirror.in(weights);
    c.write_gradient = false;
    ops::cross_entropy(Stream(device), c);
    c.losses = mirror.io(losses), c.z_losses = mirror.io(z_losses), c.write_gradient = true;
    ops::cross_entropy(Stream(device), c);
    mirror.fetch();
    expect(gradient, losses, z_losses, errors);
    expect_close(only_losses, losses, 0, 2 * unit_roundoff(sums()), "losses without gradient");
    EXPECT_TRUE(only_z_losses.same_bits(z_losses));
  }

  /// Runs the op over columns divided among `ranks`, which share this process; the last may have
  /// only padding.
  void check_parallel(Device& device, int ranks, const CrossEntropyErrors& errors) const {
    SCOPED_TRACE(fmt::format("{} [{}, {} of {}] on {} ranks, smoothing {}", name_of(logits.dtype()),
                             rows(), vocabulary, columns(), ranks, smoothing));
    const Stream stream(device);
    std::vector<Part> parts(static_cast<std::size_t>(ranks));
    const std::int64_t width = (columns() + ranks - 1) / ranks;
    for (int i = 0; i < ranks; ++i) parts[static_cast<std::size_t>(i)] = part(i * width, width);
    const auto call = [&](auto op) {
      for (Part& p : parts) {
        Mirror mirror(device);
        ops::ParallelCrossEntropy c;
        fill(c);
        c.first_column = p.first_column;
        if (weighted) c.weights = mirror.in(weights);
        c.logits = mirror.io(p.logits), c.targets = mirror.in(targets);
        c.losses = mirror.io(p.losses), c.z_losses = mirror.io(p.z_losses);
        c.local_maxima = mirror.io(p.local_maxima);
        c.maxima = mirror.io(p.maxima), c.sums = mirror.io(p.sums);
        op(stream, c);
        mirror.fetch();
      }
    };
    call(ops::cross_entropy_maxima);
    reduce(parts, &Part::maxima, [](double a, double b) { return std::max(a, b); });
    call(ops::cross_entropy_sums);
    reduce(parts, &Part::sums, [](double a, double b) { return a + b; });
    call(ops::cross_entropy_finish);
    HostTensor gradient(logits.dtype(), logits.shape());
    for (const Part& p : parts) {
      EXPECT_TRUE(p.losses.same_bits(parts[0].losses));
      EXPECT_TRUE(p.z_losses.same_bits(parts[0].z_losses));
      for (std::int64_t r = 0; r < rows(); ++r)
        for (std::int64_t c = 0; c < width; ++c) {
          if (p.first_column + c < columns())
            gradient.set(r * columns() + p.first_column + c, p.logits[r * width + c]);
          else
            EXPECT_EQ(p.logits[r * width + c], 0) << "padding of the last rank";
        }
    }
    // The sum of every rank is scaled to the common maximum by one exponential, and rounded, and so
    // is each step of their sum.
    CrossEntropyErrors more = errors;
    more.additions += errors.exp + 10 * spread * (1 + errors.exp_per_unit) + ranks + 2;
    expect(gradient, parts[0].losses, parts[0].z_losses, more);
  }

 private:
  struct Part {
    std::int64_t first_column;
    HostTensor logits, losses, z_losses, local_maxima, maxima, sums;
  };
  Part part(std::int64_t first, std::int64_t width) const {
    const std::int64_t n = rows();
    Part p{first,
           HostTensor(logits.dtype(), {n, width}),
           HostTensor(sums(), {n}),
           HostTensor(sums(), {n}),
           HostTensor(sums(), {n}),
           HostTensor(sums(), {n}),
           HostTensor(sums(), {n, smoothing > 0 ? 3 : 2})};
    for (std::int64_t r = 0; r < n; ++r)
      for (std::int64_t c = 0; c < width && first + c < columns(); ++c)
        p.logits.set(r * width + c, logits[r * columns() + first + c]);
    return p;
  }
  template <class Op>
  static void reduce(std::vector<Part>& parts, HostTensor Part::*member, Op op) {
    const HostTensor& first = parts[0].*member;
    HostTensor all = first;
    for (std::size_t p = 1; p < parts.size(); ++p)
      for (std::int64_t i = 0; i < all.count(); ++i) all.set(i, op(all[i], (parts[p].*member)[i]));
    for (Part& p : parts) p.*member = all;
  }

  HostTensor exact_, exact_losses_, exact_z_losses_;
};

}  // namespace choir::test
