#pragma once
// What tells mistakes from rounding: the gradient of each tensor, and, as a yardstick, how far a
// run moves when its weights are not quite what they were.
#include <cstdint>
#include <map>
#include <string>

#include "choir/infer/model_instance.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// After ModelInstance::initialise(), on one rank alone. Moves every weight by one unit in the last
/// place of the type that the matrix products read, up or down by a coin of `seed` and the element;
/// zeros stay.
void move_last_places(ModelInstance& instance, std::uint64_t seed);

/// `value` moved away from zero (`up`) or towards it by 2^(e + 1 - digits), 2^e <= |value| <
/// 2^(e+1).
double moved_last_place(double value, bool up, int digits);

/// Collective over the mesh, with nothing in flight: by name, the norm of the gradient of the step
/// last finished, of the whole logical tensor. The same in every layout, but for
/// rounding: a gradient that is lost, or is a part of a sum, shows here even where its tensor adds
/// next to nothing to the norm of all.
std::map<std::string, double> gradient_norms(Engine& engine);

}  // namespace choir
