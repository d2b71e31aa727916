#pragma once
// How far a run moves when its weights are not quite what they were: the yardstick by which
// `choir bench scaling` tells rounding from mistakes.
#include <cstdint>

#include "choir/train/engine/model_instance.hpp"

namespace choir {

/// After ModelInstance::initialise(), on one rank alone. Moves every weight by one unit in the last
/// place of the type that the matrix products read, up or down by a coin of `seed` and the element;
/// zeros stay.
void move_last_places(ModelInstance& instance, std::uint64_t seed);

/// `value` moved away from zero (`up`) or towards it by 2^(e + 1 - digits), 2^e <= |value| <
/// 2^(e+1).
double moved_last_place(double value, bool up, int digits);

}  // namespace choir
