#pragma once
// Counts the calls of operator new in the test programs, for "nothing is allocated in here".
#include <cstdint>

namespace choir::test {

/// Calls of operator new (any form, any thread) since the start.
std::int64_t allocations();

}  // namespace choir::test
