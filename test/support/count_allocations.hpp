#pragma once
// Counts the calls of operator new in the test programs, for tests that allocate nothing, and its
// bytes, for tests of memory limits.
#include <cstdint>

namespace choir::test {

/// Calls of operator new (any form, any thread) since the start.
std::int64_t allocations();

/// The peak of bytes in use since this object was created, beyond those in use then. Only one such
/// object may exist at a time.
class PeakBytes {
 public:
  PeakBytes();
  std::int64_t value() const;

 private:
  std::int64_t before_;
};

}  // namespace choir::test
