#pragma once
// Dropout by Philox 4x32-10 of global coordinates; one call of the generator gives four features.
// Floor per element: 2 transfers; about 25 integer operations, which wide vectors hide behind
// memory.
#include "choir/ops/dropout.hpp"

namespace choir {

namespace cpu {
template <class T>
void dropout(const ops::Dropout& args);
}  // namespace cpu

namespace ref {
/// f64.
void dropout(const ops::Dropout& args);
}  // namespace ref

}  // namespace choir
