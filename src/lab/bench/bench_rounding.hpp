#pragma once
// Tools to tell mistakes from rounding: the gradient norm of each tensor and, as a yardstick, runs
// with slightly perturbed weights.
#include <cstdint>
#include <map>
#include <string>

#include "choir/run/model_instance.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// Moves every weight by one unit in the last place of the type that the matrix products read, up
/// or down at random by `seed` and the element; zeros stay. Called after
/// ModelInstance::initialise(), with a single rank.
void move_last_places(ModelInstance& instance, std::uint64_t seed);

/// `value` moved away from zero (`up`) or towards it by 2^(e + 1 - digits), 2^e <= |value| <
/// 2^(e+1).
double moved_last_place(double value, bool up, int digits);

/// Returns the gradient norm of each tensor in the last finished step, by name and over the whole
/// logical tensor. Collective over the mesh, with no step in flight. The norms are the same in
/// every layout except for rounding: a gradient that is lost, or is only a part of a sum, shows up
/// here even if its tensor adds next to nothing to the total norm.
std::map<std::string, double> gradient_norms(Engine& engine);

}  // namespace choir
