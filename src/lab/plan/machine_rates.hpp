#pragma once
// The times of products, attention, updates and calls by a calibration, whose rows are prepared for
// fast lookup. Pure.
//
//   product     interpolated efficiency: FLOP/s over the logarithms of m, n, k, in the grid of the
//               same form; constant beyond the border of the grid
//   attention   FLOPs / rate(length, head width), interpolated in the same way
//   call        T(S, n), interpolated over log S between the measured sizes. For a number of ranks
//               n other than the measured n0, with the ring's factor f (all-reduce 2 (n-1)/n;
//               reduce-scatter, all-gather, all-to-all (n-1)/n; message 1) and L = T(smallest, n0):
//                 T = L log2(n) / log2(n0) + (T(S, n0) - L) f(n) / f(n0)
//   group on N nodes with l ranks each, l > 1:
//                 T_reduce-scatter(S, l) + T_across(S / l, N) + T_all-gather(S, l)
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/device/null_device.hpp"
#include "src/lab/plan/calibration.hpp"

namespace choir {

/// A value over the logarithms of `N` extents: its logarithm is multilinear between the points that
/// were added, and constant beyond the border. A corner without a point takes the value of the
/// nearest point.
template <std::size_t N>
class LogGrid {
 public:
  using Point = std::array<double, N>;
  void add(const Point& extents, double value);
  void finish();  ///< must be called before at()
  double at(const Point& extents) const;

 private:
  struct Known {
    Point at;
    double value;
  };
  double nearest(const Point& place) const;
  std::array<std::vector<double>, N> axes_;
  std::vector<Known> points_;
};

/// Sums over some work. Operations other than products and attention are kept as bytes and FLOPs.
struct PlaceTime {
  double products = 0, attention = 0;  ///< seconds
  double bytes = 0, flops = 0;
};

class MachineRates {
 public:
  /// `calibration` is borrowed.
  explicit MachineRates(const Calibration& calibration);

  // All return seconds.
  double product(const ProductWork& work) const;
  double attention(const AttentionWork& work) const;
  double update(const std::string& precision, double bytes) const;
  /// The time of a call if nothing hides it.
  double call(const CallGroup& group, const CallWork& call) const;
  /// The time of a call among the ranks of a node, or of one rank on each of several nodes.
  double call_inside(bool across, bool window, CallKind kind, int ranks, double bytes) const;

  /// See Overlap; 0 if nothing was measured.
  double hidden_share(bool across) const;
  const StreamTimes& streams(const std::string& precision) const;
  /// The largest WaitFactor of the axes along which the layout has several ranks; 1 for axes that
  /// were not measured.
  double waiting(const std::string& precision, const Layout& layout) const;
  /// The times of the work of all visits.
  PlaceTime parts(const PlaceWork& work) const;

 private:
  const Calibration& calibration_;
  std::map<std::pair<DType, int>, LogGrid<3>> products_;
  std::map<std::pair<DType, int>, LogGrid<2>> attention_;
  std::map<std::string, LogGrid<1>> updates_;
};

}  // namespace choir
