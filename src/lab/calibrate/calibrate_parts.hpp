#pragma once
// Private to calibrate: the parts of a calibration, each collective over the world of the mesh.
#include "choir/lab/calibrate/calibrate.hpp"

namespace choir {

/// The mean over all ranks.
double mean_over(Communicator& world, double value);

void add_products(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                  bool brief);
void add_attention(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                   bool brief);
/// Wants products and attention of the precision.
void add_steps(Calibration& to, Mesh& mesh, Device& device, Logger& log,
               const std::string& precision, bool brief);
void add_calls(Calibration& to, Mesh& mesh, Device& device, bool brief);
/// Wants calls.
void add_overlaps(Calibration& to, Mesh& mesh, Device& device);

}  // namespace choir
