#pragma once
// Measures what this machine does, for predictions (choir/lab/plan/step_time.hpp): products and
// attention by shape, calls by kind and size inside a node and between nodes, how far they hide,
// whole steps of small models, to which the rest is fitted, and such steps shared along each axis,
// which show what ranks lose that wait for each other. Every rank works at the same time, as in
// training; times are medians of rounds on each rank, and the mean over the ranks.
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/device/device.hpp"
#include "choir/lab/plan/step_time.hpp"

namespace choir {

struct CalibrateOptions {
  std::vector<std::string> precisions{"fp32"};
  bool brief = false;  ///< a few seconds, for tests: fewer shapes and sizes, far less accurate
};

/// Local, pure: how the ranks of a calibration are laid out: tensor ranks inside nodes, data ranks
/// across them.
Layout calibration_layout(int ranks, int nodes);

/// Collective over the world of `mesh`, which has that layout. Equal on every rank. NumericError
/// for a machine that multiplies wrongly.
Calibration calibrate(Mesh& mesh, Device& device, Logger& log, const CalibrateOptions& options);

/// What was measured, in a few lines.
std::string to_string(const Calibration& calibration);

// For tests. Pure.

/// One phase of a step: what its parts should take, and what it took.
struct FittedPhase {
  PlaceTime parts;
  double seconds = 0;
};
/// The times of streams for which (products x factor + attention + bytes x per_byte + FLOPs x
/// per_flop) / seconds is nearest to 1 in the mean square, none of them negative.
StreamTimes fit_streams(const std::vector<FittedPhase>& phases);

}  // namespace choir
