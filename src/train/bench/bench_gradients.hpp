#pragma once
// What a layout left in the gradients, tensor by tensor: a gradient that is lost, or is a part of a
// sum, shows here even where its tensor adds next to nothing to the norm of all.
#include <map>
#include <string>

#include "choir/train/engine/engine.hpp"

namespace choir {

/// Collective over the mesh, with nothing in flight: by name, the norm of the gradient of the step
/// last finished, of the whole logical tensor. The same in every layout, but for rounding.
std::map<std::string, double> gradient_norms(Engine& engine);

}  // namespace choir
