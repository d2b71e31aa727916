#pragma once
// The parts of a calibration, private to calibrate(). Each is collective over the world of the
// mesh.
#include <vector>

#include "choir/lab/bench/bench_step.hpp"
#include "choir/lab/calibrate/calibrate.hpp"

namespace choir {

/// Number of rounds of each measurement, of which the median counts, as in `choir bench step`. A
/// neighbour's work for some seconds would slow down everything measured then, and the fastest
/// moments are not typical of steps.
inline constexpr int kCalibrationRounds = 3;

/// The mean over all ranks.
double mean_over(Communicator& world, double value);

void add_products(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                  bool brief);
void add_attention(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                   bool brief);
/// The small models whose steps are measured.
std::vector<Deck> probe_decks(const std::string& precision, const std::string& device, bool brief);
/// The options of these measurements.
StepBenchOptions probe_options(bool brief);
/// Needs products and attention of the precision in `to`.
void add_steps(Calibration& to, Mesh& mesh, Device& device, Logger& log,
               const std::string& precision, bool brief);
void add_calls(Calibration& to, Mesh& mesh, Device& device, bool brief);
/// Needs calls in `to`.
void add_overlaps(Calibration& to, Mesh& mesh, Device& device);
/// Needs all other parts in `to`. Collective over the world.
void add_waits(Calibration& to, Device& device, Logger& log, bool brief);

}  // namespace choir
