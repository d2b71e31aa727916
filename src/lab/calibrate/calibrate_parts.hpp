#pragma once
// Private to calibrate: the parts of a calibration, each collective over the world of the mesh.
#include <vector>

#include "choir/lab/bench/bench_step.hpp"
#include "choir/lab/calibrate/calibrate.hpp"

namespace choir {

/// Everything is measured so often, and medians count, as in `bench step`: a neighbour's seconds of
/// work would make all slow that is measured in them, and the quietest moments are not what steps
/// have.
inline constexpr int kCalibrationRounds = 3;

/// The mean over all ranks.
double mean_over(Communicator& world, double value);

void add_products(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                  bool brief);
void add_attention(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                   bool brief);
/// Small models whose steps are measured.
std::vector<Deck> probe_decks(const std::string& precision, const std::string& device, bool brief);
/// How each is measured.
StepBenchOptions probe_options(bool brief);
/// Wants products and attention of the precision.
void add_steps(Calibration& to, Mesh& mesh, Device& device, Logger& log,
               const std::string& precision, bool brief);
void add_calls(Calibration& to, Mesh& mesh, Device& device, bool brief);
/// Wants calls.
void add_overlaps(Calibration& to, Mesh& mesh, Device& device);
/// Wants all of the others; collective over the world.
void add_waits(Calibration& to, Device& device, Logger& log, bool brief);

}  // namespace choir
