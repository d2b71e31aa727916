#pragma once
// The families of models that choir itself has.
#include <vector>

#include "choir/models/family.hpp"

namespace choir {

/// In the order of their names in messages. A program may have further ones (choir/app/run.hpp).
std::vector<const ModelFamily*> built_in_families();

}  // namespace choir
