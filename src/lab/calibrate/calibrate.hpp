#pragma once
// Measures this machine for predictions (src/lab/plan/step_time.hpp): products and attention by
// shape; calls by kind and size inside a node and between nodes, and how much of them computation
// hides; whole steps of small models, to which the rest is fitted; and such steps shared along each
// axis, which show the time that ranks lose by waiting for each other. All ranks work at the same
// time, as in training; times are medians of rounds on each rank, and the mean over the ranks.
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/family_table.hpp"
#include "choir/device/device.hpp"
#include "src/core/contention.hpp"
#include "src/lab/plan/step_time.hpp"

namespace choir {

struct CalibrateOptions {
  const FamilyTable& families;  ///< the small models are of the family "gpt"
  std::vector<std::string> precisions{"fp32"};
  /// Takes a few seconds, for tests: fewer shapes and sizes, far less accurate.
  bool brief = false;
};

/// Returns the layout of a calibration: tensor ranks inside nodes, data ranks across them. Local,
/// pure.
Layout calibration_layout(int ranks, int nodes);

/// Runs the calibration. Collective over the world of `mesh`, which has that layout; equal on every
/// rank. Throws NumericError if the machine computes wrong products.
Calibration calibrate(Mesh& mesh, Device& device, Logger& log, const CalibrateOptions& options);

/// A summary of the measurements in a few lines.
std::string to_string(const Calibration& calibration);

// The rest is for tests. Pure.

/// One phase of a step: the predicted times of its parts, and its measured time.
struct FittedPhase {
  PlaceTime parts;
  double seconds = 0;
};
/// The StreamTimes for which (products x factor + attention + bytes x per_byte + FLOPs x per_flop)
/// / seconds is nearest to 1 in the mean square. No value is negative.
StreamTimes fit_streams(const std::vector<FittedPhase>& phases);

}  // namespace choir
